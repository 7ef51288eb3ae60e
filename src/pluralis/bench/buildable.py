"""Whether networks and methods can be made as recipes ask for them, before anything runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pluralis.bench.runs import Run
from pluralis.build import make_network
from pluralis.config import ModelPart, Recipe
from pluralis.data.loader import TensorImages
from pluralis.defaults import settle
from pluralis.errors import PluralisError, RecipeError
from pluralis.losses import LOSSES, create_loss
from pluralis.method import Setup
from pluralis.methods import START_BIASES, create_method
from pluralis.models import Network, create_backbone, load_weights
from pluralis.runtime import Runtime

_CLASSES = 100  # how many there are, the data says later
_NETWORKS = 8  # that are kept: the rows of a table have few


def check_buildable(recipe: Recipe) -> None:
    """Raise what is wrong with the names and parameters of backbone, head and method; weights are not looked at."""
    settled, _ = settle(recipe, TensorImages(torch.zeros(1, 3, 1, 1)))  # which would decide size and epochs alone
    if settled.train.lr != recipe.train.lr:  # a table of rates would name one and show another
        raise RecipeError(
            f"train.lr is {recipe.train.lr:g}, which {recipe.method.name} does not keep while its head is left open:"
            f' set model.head = "{settled.model.head}", or another train.lr or train.head_lr'
        )
    if recipe.method.start_bias not in ("method", *START_BIASES):
        known = ", ".join(("method", *START_BIASES))
        raise RecipeError(f"method.start_bias is {recipe.method.start_bias!r}; it must be one of {known}")
    Runtime(precision=recipe.run.precision)
    if recipe.model.backbone.startswith("timm:") and find_spec("timm") is None:
        return  # who only lists runs, or makes tables of those that there are, needs no timm
    model = replace(settled.model, weights="", sha256="")
    _build(*(json.dumps(vars(part), sort_keys=True) for part in (model, settled.method)), settled.train.freeze)


def check_weights(runs: Iterable[Run], made: Path) -> None:
    """Make each backbone once, with the weights that runs start from: what is missing is not to be found run by run.

    The bench makes the weights `made` itself.
    """
    seen: set[tuple[str, str, str]] = set()
    for run in runs:
        part = run.recipe.model
        named = (part.backbone, part.weights, part.sha256)
        if named in seen or part.weights == str(made):
            continue
        seen.add(named)
        try:
            backbone = create_backbone(part.backbone)
            if part.weights:
                load_weights(backbone, part.weights, part.sha256 or None)
        except PluralisError as error:
            raise type(error)(f"{run.label}: {error}") from None


@cache
def _build(model: str, method: str, freeze: int) -> None:
    """Once for each text: a table has hundreds of runs."""
    values: dict[str, Any] = json.loads(method)
    net = _network(model)
    net.freeze("all" if freeze < 0 else freeze)
    if values["name"] in LOSSES:  # which need no network
        create_loss(values["name"], **values["params"])
    else:
        create_method(values["name"], Setup(lambda: _another(net), _CLASSES), values["params"])


@lru_cache(maxsize=_NETWORKS)
def _network(model: str) -> Network:
    return make_network(ModelPart(**json.loads(model)), _CLASSES)


def _another(net: Network) -> Network:
    """A network with parameters of its own, though not with memory of its own, which would take time."""
    parameters = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in net.parameters()}
    return copy.deepcopy(net, parameters | {id(b): b.detach() for b in net.buffers()})
