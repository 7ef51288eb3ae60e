"""Recipes: TOML in and out, settings on top, and errors that name the nearest key."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pluralis.config import Recipe, changed_keys
from pluralis.errors import RecipeError


def test_round_trip_through_toml() -> None:
    recipe = Recipe.load(None, ["method.params.alpha=0.05", 'data.images=a "quoted" ünï\\path', "train.lr=3e-5"])
    assert Recipe.from_dict(tomllib.loads(recipe.to_toml())) == recipe


def test_any_text_comes_back_from_toml() -> None:
    names = [chr(code) for code in range(256)] + ["\u2028", "\U0001f600", '"""', "\\u007f"]
    recipe = Recipe.load(None, [], {"data.images": "".join(names), "data.options.classes": names})
    assert Recipe.from_dict(tomllib.loads(recipe.to_toml())) == recipe


def test_settings_go_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[train]\nlr = 1e-3\nepochs = 4\n")
    recipe = Recipe.load(tmp_path / "r.toml", ["train.lr=1e-5", "method.name=em", "data.options.split=val"])
    assert (recipe.train.lr, recipe.train.epochs, recipe.method.name) == (1e-5, 4, "em")
    assert recipe.data.options == {"split": "val"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.lrr=1", "'train.lr'"),
        ("lr=1", "'train.lr'"),
        ("trian.lr=1", "'train'"),
        ("train.lr=fast", "type float"),
        ("train.epochs=1.5", "type int"),
        ("train.epochs=true", "type int"),
        ("train.epochs=-1", "from 0"),
        ("data.protocol_seed=one", "type int"),
        ("data.protocol_seed=true", "type int"),
        ("data.protocol_seed=-1", "from 0"),
        ("train.optimizer=lion", "adam, adamw, sgd"),
        ("select.rule=best", "clean, observed, last"),
        ("select.fraction=0", "held-out rows"),
        ("data.size=4", "from 16"),
        ("data.store_size=-5", "from 16"),
        ("run.workers=-1", "from 0"),
        ("select.seed=-1", "from 0"),
        ("data.test.foo=1", "data.test.foo"),
        ("train.lr", "section.key=value"),
        ("train.lr.x=1", "train.lr must be"),
    ],
)
def test_mistakes_are_named(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=".*") as caught:
        Recipe.load(None, [setting])
    assert message in str(caught.value)


def test_unreadable_recipe(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[train\n")
    with pytest.raises(RecipeError, match=r"bad\.toml"):
        Recipe.load(tmp_path / "bad.toml")
    with pytest.raises(RecipeError, match=r"none\.toml"):
        Recipe.load(tmp_path / "none.toml")


def test_what_counts_as_a_change() -> None:
    base = Recipe()
    assert changed_keys(base, base.with_settings(["run.workers=8", "run.cache=none", "data.images=elsewhere"])) == []
    assert changed_keys(base, base.with_settings(["train.lr=0.5"])) == ["train.lr: 0.0001 -> 0.5"]


def test_of_parameters_only_those_that_changed_are_named() -> None:
    base = Recipe().with_settings(
        ["method.name=relabel"],
        {"method.params": {"rounds": 1, "views": "fast", "loss_params": {"a": 1.0, "rate": 0.5}}},
    )
    other = {"rounds": 2, "views": "fast", "loss_params": {"a": 1.0, "rate": 0.7}, "folds": 3}
    assert changed_keys(base, base.with_settings([], {"method.params": other})) == [
        "method.params.rounds: 1 -> 2",
        "method.params.loss_params.rate: 0.5 -> 0.7",
        "method.params.folds: not set -> 3",
    ]


def test_a_seed_that_is_left_open_is_that_of_the_protocol() -> None:
    """Stored recipes may name it, and go on; where it decides the draw, another one is another recipe."""
    base = Recipe().with_settings(["data.protocol=known-ratio", "data.protocol_share=0.5"])
    assert (base.data.protocol_seed, base.data.draw_seed) == (None, 0)
    assert base.with_settings(["data.protocol=single-positive", "data.protocol_share=0"]).data.draw_seed == 1200
    assert "protocol_seed" not in base.to_toml()
    assert Recipe.from_dict(json.loads(json.dumps(base.to_dict()))) == base
    assert changed_keys(base.with_settings(["data.protocol_seed=0"]), base) == []
    assert changed_keys(Recipe().with_settings(["data.protocol_seed=1200"]), Recipe()) == []
    assert changed_keys(base.with_settings(["data.protocol_seed=1200"]), base) == ["data.protocol_seed: 1200 -> 0"]


def test_recipes_are_read_without_torch() -> None:
    code = "import sys, pluralis.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "path", [p for p in sorted(Path("recipes").rglob("*.toml")) if p.parent.name not in ("papers", "default")], ids=str
)
def test_every_recipe_in_the_repository_is_valid(path: Path) -> None:
    Recipe.load(path)
