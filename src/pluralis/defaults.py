"""What a recipe leaves open, decided from the plan and the pictures: method, head, norms, rate, size, epochs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from pluralis.config import AUTO, DRAWN, Recipe
from pluralis.data.loader import Images
from pluralis.errors import RecipeError, nearest
from pluralis.losses import LOSSES
from pluralis.methods import check_learns_images, method_class
from pluralis.methods.relabel import looks
from pluralis.models import HEADS
from pluralis.stage import FEWEST_STEPS, USUAL_EPOCHS, Stage

LARGE, USUAL = 320, 256
DECODER_LR = 3e-5  # with heads at ten times that
# A network that knows pictures already soon learns few of them by heart: what was written, and that all else is absent.
# These methods go by what it says of the rest, of the very images that it was trained on.
BY_HEART = ("relabel", "selection")
FEWEST_BY_HEART = 60
STUDENTS = 2
DROPOUT = 0.2
FEW_STEPS = FEWEST_STEPS // USUAL_EPOCHS  # an epoch: not of the run, so that tuning its length starts from the same
_LOOKED_AT = 64  # pictures, evenly spread, whose sides are asked for


def frozen(recipe: Recipe) -> bool:
    """Whether heads alone train."""
    return recipe.train.freeze < 0 or recipe.run.cache == "features"


def settle(recipe: Recipe, images: Images) -> tuple[Recipe, list[str]]:
    """The recipe with nothing left open, and a line about each choice.

    method  `relabel`; where the backbone does not train, `selection`: there is no second network to teach
    head    `lse` for `relabel` on a backbone that trains, `label-decoder` for `lac`, `linear` otherwise
    norms   of a backbone that trains keep their statistics (`freeze_bn`) if it was trained before
    lr      of `lac` with the head that is chosen here: 3e-5 in the place of the usual 1e-4
    size    320 where half of the pictures are that large, 256 otherwise
    epochs  10, and more where they are few steps (`Stage.for_rows`): 600 are few, but only 60 for the methods of
            `BY_HEART` on a backbone that trains and did so before
    views   of `relabel`: `fast` on features, which have no others
    bias    pooled maps, which have an `equal` one where a method asks for log-odds, start from log-odds after all where
            norms keep their statistics and images are few: a frequent class may end in every image otherwise
    start   of the second network of `relabel`: `soft` where norms keep their statistics
    students of `relabel`: two, whose weights are averaged, where norms keep their statistics
    dropout 0.2 for `relabel` where norms keep their statistics, none otherwise
    images  of held-out rows teach these students too, without their labels (`select.images`), if they are held out for
            the rule `observed`: those for `clean` or `last` may be somebody's validation set

    A method and a head that are chosen here come with all of their parameters, so that the run's folder tells them
    whatever the defaults may become. The seed of a protocol that does not state one is written down too.
    """
    said = []
    still = frozen(recipe)
    open_students = "students" not in recipe.method.params
    open_start = recipe.method.start_bias == "method" and "student_start" not in recipe.method.params
    if recipe.method.name == AUTO:
        name, why = ("selection", "frozen backbone") if still else ("relabel", "backbone that trains")
        recipe = replace(recipe, method=replace(recipe.method, name=name, params=_params(name, recipe.method.params)))
        said.append(f"method {name}: none was named, and this is the best known for a {why}")
    if recipe.model.head == AUTO:
        name = recipe.method.name
        head = {"relabel": "linear" if still else "lse", "lac": "label-decoder"}.get(name, "linear")
        params = _default_params(HEADS[head]) | recipe.model.head_params
        recipe = replace(recipe, model=replace(recipe.model, head=head, head_params=params))
        said.append(f"head {head}: it goes with {name}")
        if head == "label-decoder" and (recipe.train.lr, recipe.train.head_lr) == (Stage.lr, Stage.head_lr):
            recipe = replace(recipe, train=replace(recipe.train, lr=DECODER_LR))
            said.append(
                f"lr {DECODER_LR:g}: at {Stage.lr:g} this head, which has {Stage.head_lr:g} times that, may diverge;"
                f' set model.head = "{head}" to train at {Stage.lr:g} all the same'
            )
    if recipe.train.freeze_bn is None and not still:
        keep = recipe.train.keep_norms(bool(recipe.model.weights))
        recipe = replace(recipe, train=replace(recipe.train, freeze_bn=keep))
        if keep:
            said.append("freeze_bn true: the backbone starts from weights, and batch norms keep their statistics")
    if recipe.data.size == 0:
        side = _usual_side(images)
        size = LARGE if side >= LARGE else USUAL
        recipe = replace(recipe, data=replace(recipe.data, size=size))
        than = "have" if size == LARGE else "do not have"
        said.append(
            f"size {size}: half of the pictures {than} {LARGE} pixels (median of their shorter sides: {side:.0f})"
        )
    steps = math.ceil(len(images) / recipe.train.batch_size)
    if recipe.train.epochs == 0:
        by_heart = recipe.method.name in BY_HEART and recipe.model.weights and not still
        fewest = FEWEST_BY_HEART if by_heart else FEWEST_STEPS
        recipe = replace(recipe, train=recipe.train.for_rows(len(images), fewest))
        epochs = recipe.train.epochs
        few = f", and learning takes some {fewest}" if epochs > USUAL_EPOCHS else ""
        said.append(f"epochs {epochs}: the {len(images):,} images to train on make {steps:,} steps an epoch{few}")
    kept = bool(recipe.train.freeze_bn) and not still
    if kept and steps < FEW_STEPS and _swaps_log_odds(recipe):
        recipe = replace(recipe, method=replace(recipe.method, start_bias="log-odds"))
        said.append(
            f"start_bias log-odds: with {len(images):,} images a frequent class that starts at the p of all others"
            " may end in every image"
        )
    if recipe.method.name == "relabel":
        if _on_features(recipe) and "views" not in recipe.method.params:
            recipe = _with_params(recipe, {"views": "fast"})
            said.append("views fast: features have no others")
        if kept and open_start:
            recipe = _with_params(recipe, {"student_start": "soft"})
            said.append("student_start soft: the second network starts from how often soft labels are present")
        if kept and open_students:
            recipe = _with_params(recipe, {"students": STUDENTS})
            said.append(
                f"students {STUDENTS}: each learns the soft labels by itself; the mean of their weights is kept"
            )
        if kept and recipe.model.dropout is None:
            recipe = replace(recipe, model=replace(recipe.model, dropout=DROPOUT))
            said.append(f"dropout {DROPOUT}: of the features before the head, as in all that this was measured with")
        if kept and recipe.select.images is None and recipe.select.rule == "observed":
            recipe = replace(recipe, select=replace(recipe.select, images=True))
            said.append("images true: those of held-out rows are learned from as well, without their labels")
        said.append(_relabelling(recipe))
    if recipe.select.images:
        check_learns_images(recipe.method.name)
    if recipe.data.protocol in DRAWN:
        recipe = replace(recipe, data=replace(recipe.data, protocol_seed=recipe.data.draw_seed))
    return recipe, said


def filled(recipe: Recipe) -> Recipe:
    """A settled recipe with every parameter of its method and of its head, those that it leaves out at their defaults.

    Two recipes that differ only in what they leave out are the same then.
    """
    views = {"views": "fast"} if recipe.method.name == "relabel" and _on_features(recipe) else {}
    params = _params(recipe.method.name, views | recipe.method.params)
    if recipe.model.head not in HEADS:
        raise RecipeError(f"there is no head {recipe.model.head!r}; {nearest(recipe.model.head, HEADS)}")
    of_head = _default_params(HEADS[recipe.model.head]) | recipe.model.head_params
    return replace(_with_params(recipe, params), model=replace(recipe.model, head_params=of_head))


def check_views(recipe: Recipe) -> None:
    """Refuse to relabel features with views that only pictures have, before any work is done."""
    if recipe.method.name != "relabel" or not _on_features(recipe):
        return
    params = filled(recipe).method.params
    if looks(**_of_looks(params)).passes > 1:
        raise RecipeError(
            f'method.params.views is "{params["views"]}", but the run trains on features (run.cache = "features"),'
            ' which cannot be resized, mirrored or cropped: leave it out, or set method.params.views = "fast"'
        )


def _swaps_log_odds(recipe: Recipe) -> bool:
    """Whether heads start from another bias than the log-odds that the method asks for, since they pool maps."""
    head = HEADS.get(recipe.model.head)
    if recipe.method.start_bias != "method" or getattr(head, "start_bias", "log-odds") == "log-odds":
        return False
    loss = filled(recipe).method.params.get("loss") if recipe.method.name == "relabel" else None
    asks = LOSSES[loss] if isinstance(loss, str) and loss in LOSSES else method_class(recipe.method.name)
    return bool(asks.start_bias == "log-odds" and not asks.deep_start_bias)


def _relabelling(recipe: Recipe) -> str:
    """What the relabelling costs, in words."""
    params = filled(recipe).method.params
    seen, views, rounds = looks(**_of_looks(params)), params["views"], params["rounds"]
    times = "" if rounds == 1 else f", in each of {rounds} rounds"
    return f"relabelling looks at the training images with the views {views}: {seen.cost()}{times}"


def _of_looks(params: dict[str, Any]) -> dict[str, Any]:
    return {name: params[name] for name in ("views", "crop_weight")}


def _on_features(recipe: Recipe) -> bool:
    return recipe.run.cache == "features"


def _with_params(recipe: Recipe, params: dict[str, Any]) -> Recipe:
    return replace(recipe, method=replace(recipe.method, params=recipe.method.params | params))


def _params(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """All parameters of a method, and of the loss inside of it: how labels were written is a matter of these."""
    params = _default_params(method_class(method)) | given
    loss, of_loss = params.get("loss"), params.get("loss_params", {})
    if isinstance(loss, str) and loss in LOSSES and isinstance(of_loss, dict):
        params["loss_params"] = _default_params(LOSSES[loss]) | of_loss
    return params


def _default_params(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Parameters that a recipe may state and their defaults; None, which TOML has not, is a parameter left out."""
    found = inspect.signature(constructor).parameters.values()
    stated = (p for p in found if p.name != "dropout" and p.default not in (inspect.Parameter.empty, None))
    return {p.name: p.default for p in stated}


def _usual_side(images: Images) -> float:
    """Median of the shorter sides of some of them."""
    rows = np.unique(np.linspace(0, len(images) - 1, min(_LOOKED_AT, len(images))).astype(int))
    return median(min(images.sides(int(row))) for row in rows)
