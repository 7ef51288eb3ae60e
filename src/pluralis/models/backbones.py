"""The backbones by name: a literal table, and `timm:NAME` for everything else."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from pluralis.errors import RecipeError
from pluralis.models.base import Backbone
from pluralis.models.efficientnet import EfficientNetLite0
from pluralis.models.resnet import resnet18, resnet34, resnet50, resnet101
from pluralis.models.timm_backbone import TimmBackbone
from pluralis.models.tiny import TinyNet

BACKBONES: dict[str, Callable[[], Backbone]] = {
    "tiny": TinyNet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "efficientnet_lite0": EfficientNetLite0,
}

_TIMM = "timm:"


def create_backbone(name: str) -> Backbone:
    """A backbone with random weights, by its name in BACKBONES or as `timm:NAME`.

    >>> create_backbone("tiny").out_channels
    96
    """
    if name.startswith(_TIMM):
        return TimmBackbone(name.removeprefix(_TIMM))
    if name not in BACKBONES:
        raise unknown_name("backbone", name, BACKBONES, "or 'timm:NAME'")
    return BACKBONES[name]()


def unknown_name(kind: str, name: str, known: Iterable[str], extra: str = "") -> RecipeError:
    """The error for a name that is not in a table: says the nearest name and all that exist."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)
    listed = ", ".join(names) + (f" {extra}" if extra else "")
    return RecipeError(f"unknown {kind} '{name}': did you mean '{near[0]}'? Choose from {listed}")
