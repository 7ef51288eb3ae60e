"""What is chosen for somebody who names no method, head or size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from pluralis.config import Recipe
from pluralis.data.images import ImageFiles
from pluralis.data.loader import TensorImages
from pluralis.defaults import settle
from pluralis.run import train

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


@pytest.mark.parametrize(("method", "head"), [("gr", "linear"), ("lac", "label-decoder"), ("relabel", "lse")])
def test_a_named_method_gets_the_head_that_goes_with_it(method: str, head: str) -> None:
    assert settled(**{"method.name": method}) == (method, head, 256)


def test_what_is_named_stays_and_nothing_is_said() -> None:
    named = {"method.name": "an", "model.head": "csra", "data.size": 64}
    recipe = Recipe().with_settings([], named)
    assert settle(recipe, PIXELS) == (recipe, [])


@pytest.mark.parametrize(("sides", "size"), [([(640, 320), (400, 330), (50, 50)], 320), ([(640, 319)] * 2, 256)])
def test_size_follows_the_shorter_side_of_half_of_the_pictures(
    tmp_path: Path, sides: list[tuple[int, int]], size: int
) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(len(sides))]
    for path, side in zip(paths, sides, strict=True):
        Image.new("RGB", side).save(path)
    recipe, said = settle(Recipe(), ImageFiles(paths))
    assert recipe.data.size == size
    assert [line.split(":")[0] for line in said] == ["method relabel", "head lse", f"size {size}"]


def test_a_run_stores_and_tells_what_was_chosen_and_can_be_repeated(tmp_path: Path) -> None:
    open_recipe = Recipe().with_settings(
        [], {"data.format": "scenes", "data.options": {"count": 30}, "data.protocol": "single-positive",
             "model.backbone": "tiny", "model.weights": "", "train.epochs": 1, "data.size": 24,
             "method.params": {"views": "fast"}},
    )  # fmt: skip
    lines: list[str] = []
    from pluralis.run import Hooks

    first = train(open_recipe, tmp_path / "run", Hooks(say=lines.append))
    assert (first.recipe.method.name, first.recipe.model.head) == ("relabel", "lse")
    assert any(line.startswith("method relabel") for line in lines)
    assert Recipe.load(tmp_path / "run" / "recipe.toml") == first.recipe
    again = train(open_recipe, tmp_path / "run")  # the same command goes on with it
    assert again.resumed
    assert again.recipe == first.recipe
    assert open_recipe.data.protocol_seed is None
    assert first.recipe.data.protocol_seed == 1200  # the folder tells it, whatever the default may become
    assert replace(first.recipe, **{part: getattr(open_recipe, part) for part in ("data", "method", "model")}) == (
        open_recipe
    )
