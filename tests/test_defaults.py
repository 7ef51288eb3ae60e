"""What is chosen for somebody who names no method, head, size or number of epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from pluralis.build import make_network
from pluralis.config import Recipe, changed_keys
from pluralis.data.images import ImageFiles
from pluralis.data.loader import TensorImages
from pluralis.defaults import filled, settle
from pluralis.errors import Interrupted, RecipeError
from pluralis.models import create_model
from pluralis.run import Hooks, train

PIXELS = TensorImages(torch.zeros(3, 3, 40, 500, dtype=torch.uint8))


def settled(**values: object) -> tuple[str, str, int]:
    recipe, _ = settle(Recipe().with_settings([], values), PIXELS)
    return recipe.method.name, recipe.model.head, recipe.data.size


def test_a_backbone_that_trains_relabels_with_pooled_maps() -> None:
    assert settled() == ("relabel", "lse", 256)


@pytest.mark.parametrize("values", [{"train.freeze": -1}, {"run.cache": "features"}])
def test_a_frozen_backbone_takes_the_likelihood_alone(values: dict[str, object]) -> None:
    assert settled(**values) == ("selection", "linear", 256)
    assert settled(**values, **{"method.name": "relabel"}) == ("relabel", "linear", 256)


def test_how_labels_are_taken_to_be_written_is_stored_with_the_method() -> None:
    given = {"method.params": {"loss_params": {"unlabelled": "absent"}}}
    params = settle(Recipe().with_settings([], given), PIXELS)[0].method.params
    assert params["loss_params"] == {"mechanism": "one", "a": 1.0, "unlabelled": "absent"}


@pytest.mark.parametrize(("method", "head"), [("gr", "linear"), ("lac", "label-decoder"), ("relabel", "lse")])
def test_a_named_method_gets_the_head_that_goes_with_it(method: str, head: str) -> None:
    assert settled(**{"method.name": method}) == (method, head, 256)


@pytest.mark.parametrize(
    ("values", "lr"),
    [
        ({}, 3e-5),
        ({"train.head_lr": 1.0}, 1e-4),
        ({"train.lr": 2e-4}, 2e-4),
        ({"model.head": "label-decoder"}, 1e-4),
        ({"method.name": "gr"}, 1e-4),
    ],
)
def test_lac_trains_at_a_lower_rate_if_nothing_is_said_of_rates_and_head(values: dict[str, object], lr: float) -> None:
    asked = Recipe().with_settings([], {"method.name": "lac", **values})
    recipe, said = settle(asked, PIXELS)
    assert (recipe.train.lr, recipe.train.head_lr) == (lr, asked.train.head_lr)
    assert [line for line in said if line.startswith("lr 3e-05")] == [line for line in said if "may diverge" in line]
    assert any("may diverge" in line for line in said) == (lr == 3e-5)
    assert settle(recipe, PIXELS)[0] == recipe


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({}, True),
        ({"method.name": "gr"}, True),
        ({"model.weights": ""}, False),
        ({"train.freeze": -1}, None),  # nothing of it trains
        ({"run.cache": "features"}, None),
        ({"train.freeze_bn": False}, False),
        ({"train.freeze_bn": True, "model.weights": ""}, True),
    ],
)
def test_norms_keep_their_statistics_if_the_backbone_was_trained_before(
    values: dict[str, object], kept: bool | None
) -> None:
    recipe, said = settle(Recipe().with_settings([], values), PIXELS)
    assert recipe.train.freeze_bn is kept
    chosen = bool(kept) and "train.freeze_bn" not in values
    assert [line.split(":")[0] for line in said if "freeze_bn" in line] == ["freeze_bn true"] * chosen


def test_what_is_named_stays_and_nothing_is_said() -> None:
    named = {
        "method.name": "an", "model.head": "csra", "data.size": 64, "train.epochs": 3, "train.freeze_bn": False,
    }  # fmt: skip
    recipe = Recipe().with_settings([], named)
    assert settle(recipe, PIXELS) == (recipe, [])


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "fewer", "steps"),
    [
        (1, 32, 100, 60, 1), (100, 32, 100, 15, 4), (165, 32, 100, 10, 6), (800, 32, 24, 10, 25),
        (800, 16, 12, 10, 50), (4574, 32, 10, 10, 143),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("parts", "by_heart"),
    [
        ([], True), (["method.name=selection"], True), (["method.name=an"], False), (["train.freeze=-1"], False),
        (["model.weights="], False),
    ],
)  # fmt: skip
def test_few_rows_are_gone_through_more_often(
    rows: int, batch_size: int, epochs: int, fewer: int, steps: int, parts: list[str], by_heart: bool
) -> None:
    """Not as often where a whole network that starts from weights would learn them by heart."""
    plan = Recipe().with_settings([f"train.batch_size={batch_size}", *parts])
    recipe, said = settle(plan, TensorImages(torch.zeros(rows, 3, 2, 2, dtype=torch.uint8)))
    expected, fewest = (fewer, 60) if by_heart else (epochs, 600)
    assert recipe.train.epochs == expected == plan.train.for_rows(rows, fewest).epochs
    (line,) = [line for line in said if line.startswith("epochs")]
    assert f"epochs {expected}: the {rows:,} images to train on make {steps} steps" in line
    assert line.endswith(f"learning takes some {fewest}") == (expected > 10)
    assert replace(plan.train, epochs=7).for_rows(rows).epochs == 7


@pytest.mark.parametrize(
    ("parts", "start"),
    [
        ([], "soft"), (["train.freeze_bn=false"], "head"), (["model.weights="], "head"), (["train.freeze=-1"], None),
        (["method.start_bias=zero"], "head"), (["method.params.student_start=head"], "head"),
        (["train.freeze_bn=false", "method.params.student_start=soft"], "soft"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", [False, True])
def test_students_start_from_soft_labels_where_norms_stay(parts: list[str], start: str | None, named: bool) -> None:
    plan = Recipe().with_settings([*(["method.name=relabel"] if named else []), *parts])
    recipe, said = settle(plan, PIXELS)
    assert (recipe.method.name == "relabel") == (named or start is not None)
    if recipe.method.name == "relabel":
        assert filled(recipe).method.params["student_start"] == (start or "head")
    chosen = start == "soft" and "method.params.student_start=soft" not in parts
    assert any(line.startswith("student_start soft") for line in said) == chosen
    assert settle(recipe, PIXELS)[0] == recipe


@pytest.mark.parametrize(
    ("parts", "students", "images"),
    [
        ([], 2, True), (["train.freeze_bn=false"], 1, None), (["model.weights="], 1, None),
        (["method.params.students=1"], 1, True), (["method.params.students=3", "select.images=false"], 3, False),
        (["select.rule=last"], 2, None), (["select.rule=clean"], 2, None), (["train.freeze=-1"], 1, None),
        (["select.rule=last", "select.images=true"], 2, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", [False, True])
def test_two_students_learn_held_out_images_too_where_norms_stay(
    parts: list[str], students: int, images: bool | None, named: bool
) -> None:
    plan = Recipe().with_settings([*(["method.name=relabel"] if named else []), *parts])
    recipe, said = settle(plan, PIXELS)
    if recipe.method.name == "relabel":
        assert filled(recipe).method.params["students"] == students
    assert recipe.select.images is images
    told = [line.split(":")[0] for line in said]
    assert ("students 2" in told) == (students == 2)
    assert ("images true" in told) == (images is True and "select.images=true" not in parts)
    assert settle(recipe, PIXELS)[0] == recipe


@pytest.mark.parametrize(
    ("parts", "dropout"),
    [
        ([], 0.2), (["model.dropout=0"], 0.0), (["model.dropout=0.5"], 0.5), (["train.freeze_bn=false"], None),
        (["model.weights="], None), (["train.freeze=-1"], None), (["method.name=gr"], None),
    ],
)  # fmt: skip
def test_dropout_is_that_of_the_measurements_where_norms_stay(parts: list[str], dropout: float | None) -> None:
    recipe, said = settle(Recipe().with_settings(parts), PIXELS)
    assert recipe.model.dropout == dropout
    assert any(line.startswith("dropout 0.2") for line in said) == (not parts)
    assert settle(recipe, PIXELS)[0] == recipe
    layers = make_network(replace(recipe.model, weights=""), 3).head.modules()
    assert [layer.p for layer in layers if isinstance(layer, nn.modules.dropout._DropoutNd)] == [dropout or 0.0]
    assert not changed_keys(recipe, replace(recipe, model=replace(recipe.model, dropout=dropout or 0.0)))


@pytest.mark.parametrize(
    ("parts", "start"),
    [
        ([], "log-odds"), (["method.name=selection", "model.head=csra"], "log-odds"),
        (["method.name=bce", "model.head=lse"], "log-odds"), (["train.epochs=1000"], "log-odds"),
        (["train.batch_size=6"], "log-odds"), (["train.batch_size=5"], "method"),  # 60 steps an epoch
        (["method.start_bias=equal"], "equal"), (["model.head=linear"], "method"),
        (["method.name=an", "model.head=lse"], "method"), (["method.name=gr", "model.head=lse"], "method"),
        (["method.params.loss=gr"], "method"), (["method.params.loss=bce"], "log-odds"),
        (["train.freeze_bn=false"], "method"), (["model.weights="], "method"), (["train.freeze=-1"], "method"),
    ],
)  # fmt: skip
def test_few_images_start_from_log_odds_under_pooled_maps_too(parts: list[str], start: str) -> None:
    plan = Recipe().with_settings(parts)
    images = TensorImages(torch.zeros(300, 3, 2, 2, dtype=torch.uint8))
    recipe, said = settle(plan, images)
    assert recipe.method.start_bias == start
    assert any(line.startswith("start_bias log-odds") for line in said) == (start == "log-odds")
    if recipe.method.name == "relabel" and not parts:
        assert recipe.method.params["student_start"] == "soft"  # as where nobody states a bias
    assert settle(recipe, images)[0] == recipe


def test_other_methods_leave_held_out_images_alone() -> None:
    for name in ("an", "selection", "em-apl"):
        assert settle(Recipe().with_settings([f"method.name={name}"]), PIXELS)[0].select.images is None


@pytest.mark.parametrize(("sides", "size"), [([(640, 320), (400, 330), (50, 50)], 320), ([(640, 319)] * 2, 256)])
def test_size_follows_the_shorter_side_of_half_of_the_pictures(
    tmp_path: Path, sides: list[tuple[int, int]], size: int
) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(len(sides))]
    for path, side in zip(paths, sides, strict=True):
        Image.new("RGB", side).save(path)
    recipe, said = settle(Recipe(), ImageFiles(paths))
    assert recipe.data.size == size
    chosen = ["method relabel", "head lse", "freeze_bn true", f"size {size}", "epochs 60"]
    assert [line.split(":")[0] for line in said][:5] == chosen
    words = "have 320 pixels (median of their shorter sides: 320)" if size == 320 else "do not have 320 pixels"
    assert words in said[3]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, True),
        ({"model.weights": ""}, False),  # a head above a random backbone finds nothing
        ({"train.freeze": -1, "train.augment": "none"}, False),
        ({"method.name": "selection"}, False),
        ({"data.options": {"count": 380}}, False),
    ],
    ids=str,
)
def test_few_images_are_told_of_where_somebody_names_no_method(
    values: dict[str, object], told: bool, tmp_path: Path
) -> None:
    """Of 380 scenes 304 are trained on."""
    save_file(create_model("tiny", 10).backbone.state_dict(), tmp_path / "weights.safetensors")
    given = {
        "data.format": "scenes", "data.options": {"count": 370}, "data.protocol": "single-positive",
        "model.backbone": "tiny", "model.weights": str(tmp_path / "weights.safetensors"), "train.epochs": 1,
        "data.size": 16, "run.device": "cpu",
    }  # fmt: skip
    lines: list[str] = []

    def stop() -> bool:
        return True

    with pytest.raises(Interrupted):
        train(Recipe().with_settings([], given | values), tmp_path / "run", Hooks(say=lines.append, should_stop=stop))
    assert any(line.startswith("296 images are few: a head alone (--frozen)") for line in lines) == told
    assert any("images are few" in line for line in lines) == told


def test_a_run_stores_and_tells_what_was_chosen_and_can_be_repeated(tmp_path: Path) -> None:
    open_recipe = Recipe().with_settings(
        [], {"data.format": "scenes", "data.options": {"count": 30}, "data.protocol": "single-positive",
             "model.backbone": "tiny", "model.weights": "", "train.epochs": 1, "data.size": 24,
             "method.params": {"views": "fast"}},
    )  # fmt: skip
    lines: list[str] = []
    first = train(open_recipe, tmp_path / "run", Hooks(say=lines.append))
    assert (first.recipe.method.name, first.recipe.model.head) == ("relabel", "lse")
    assert any(line.startswith("method relabel") for line in lines)
    assert Recipe.load(tmp_path / "run" / "recipe.toml") == first.recipe
    again = train(open_recipe, tmp_path / "run")  # the same command goes on with it
    assert again.resumed
    assert again.recipe == first.recipe
    assert open_recipe.data.protocol_seed is None
    assert first.recipe.data.protocol_seed == 1200  # the folder tells it, whatever the default may become
    assert first.recipe.train == replace(open_recipe.train, freeze_bn=False)
    parts = ("data", "method", "model", "train")
    assert replace(first.recipe, **{part: getattr(open_recipe, part) for part in parts}) == open_recipe


SMALL = {
    "data.format": "scenes", "data.options": {"count": 30}, "data.protocol": "single-positive", "data.size": 24,
    "model.backbone": "tiny", "model.weights": "", "train.epochs": 1, "run.device": "cpu",
}  # fmt: skip
FEATURES = {**SMALL, "method.name": "relabel", "train.freeze": -1, "train.augment": "none", "run.cache": "features"}


def test_what_is_chosen_is_stored_with_all_of_its_parameters() -> None:
    recipe, said = settle(Recipe().with_settings(["method.params.rounds=2", "method.params.crop_weight=0"]), PIXELS)
    assert recipe.method.params == {
        "loss": "selection", "views": "thorough", "crop_weight": 0, "rounds": 2, "folds": 0, "student": "plain",
        "refresh": 0.0, "pair": False, "student_start": "soft", "students": 2,
        "loss_params": {"mechanism": "one", "a": 1.0, "unlabelled": "skip"},
    }  # fmt: skip
    assert recipe.model.head_params == {"r": 0.5, "drop": "channel"}
    assert said[-1].endswith("the views thorough: 4 passes an image, 5.1 times the work of one, in each of 2 rounds")
    frozen, _ = settle(Recipe().with_settings([], {"train.freeze": -1}), PIXELS)
    assert frozen.method.params == {"mechanism": "one", "a": 1.0, "unlabelled": "skip"}
    assert settle(recipe, PIXELS)[0] == recipe
    named, _ = settle(Recipe().with_settings([], {"method.name": "relabel", "model.head": "lse"}), PIXELS)
    assert (named.method.params, named.model.head_params) == ({"student_start": "soft", "students": 2}, {})


def test_a_run_that_was_stored_without_the_parameters_goes_on(tmp_path: Path) -> None:
    open_recipe, folder = Recipe().with_settings([], {**SMALL, "method.params": {"views": "fast"}}), tmp_path / "run"
    first = train(open_recipe, folder).recipe
    stored = replace(
        first,
        method=replace(first.method, params={"views": "fast"}),
        model=replace(first.model, head_params={}),
    )
    (folder / "recipe.toml").write_text(stored.to_toml())  # as it was before they were written down
    assert train(open_recipe, folder).resumed
    with pytest.raises(RecipeError, match=r"method\.params.*crop_weight"):
        train(open_recipe.with_settings(["method.params.crop_weight=0.5"]), folder)
    with pytest.raises(RecipeError, match=r"model\.head_params"):
        train(open_recipe.with_settings(["model.head_params.r=1.0"]), folder)


def test_features_are_relabelled_with_the_one_view_that_they_have(tmp_path: Path) -> None:
    lines: list[str] = []
    recipe = Recipe().with_settings([], {**FEATURES, "run.features": str(tmp_path / "cache")})
    done = train(recipe, tmp_path / "run", Hooks(say=lines.append))
    assert done.recipe.method.params == {"views": "fast"}
    assert any(line.startswith("views fast:") for line in lines)
    assert {line["stage"] for line in done.history} == {0, 1}


def test_other_views_of_features_are_refused_before_any_work(tmp_path: Path) -> None:
    values = {**FEATURES, "run.features": str(tmp_path / "cache"), "method.params": {"views": "standard"}}
    with pytest.raises(RecipeError, match=r'method\.params\.views is "standard".*method\.params\.views = "fast"'):
        train(Recipe().with_settings([], values), tmp_path / "run")
    assert not (tmp_path / "cache").exists()
    assert train(Recipe().with_settings(["method.params.views=fast"], values), tmp_path / "run").history
