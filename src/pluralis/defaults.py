"""What a recipe leaves open, decided from the plan and the pictures: the method, the head and the size."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np

from pluralis.config import AUTO, DRAWN, Recipe
from pluralis.data.loader import Images

LARGE, USUAL = 320, 256
_LOOKED_AT = 64  # pictures, evenly spread, whose sides are asked for


def settle(recipe: Recipe, images: Images) -> tuple[Recipe, list[str]]:
    """The recipe with nothing left open, and a line about each choice.

    method  `relabel`; where the backbone does not train, `selection`: there is no second network to teach
    head    `lse` for `relabel` on a backbone that trains, `label-decoder` for `lac`, `linear` otherwise
    size    320 where half of the pictures are that large, 256 otherwise

    The seed of a protocol that does not state one is written down too, so that the run's folder tells it.
    """
    said = []
    frozen = recipe.train.freeze < 0 or recipe.run.cache == "features"
    if recipe.method.name == AUTO:
        name, why = ("selection", "frozen backbone") if frozen else ("relabel", "backbone that trains")
        recipe = replace(recipe, method=replace(recipe.method, name=name))
        said.append(f"method {name}: none was named, and this is the best known for a {why}")
    if recipe.model.head == AUTO:
        name = recipe.method.name
        head = {"relabel": "linear" if frozen else "lse", "lac": "label-decoder"}.get(name, "linear")
        recipe = replace(recipe, model=replace(recipe.model, head=head))
        said.append(f"head {head}: it goes with {name}")
    if recipe.data.size == 0:
        side = _usual_side(images)
        size = LARGE if side >= LARGE else USUAL
        recipe = replace(recipe, data=replace(recipe.data, size=size))
        said.append(f"size {size}: the shorter side of half of the pictures is {side:.0f} pixels or more")
    if recipe.data.protocol in DRAWN:
        recipe = replace(recipe, data=replace(recipe.data, protocol_seed=recipe.data.draw_seed))
    return recipe, said


def _usual_side(images: Images) -> float:
    """Median of the shorter sides of some of them."""
    rows = np.unique(np.linspace(0, len(images) - 1, min(_LOOKED_AT, len(images))).astype(int))
    return median(min(images.sides(int(row))) for row in rows)
