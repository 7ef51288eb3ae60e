"""The backbones by name: a literal table, and `timm:NAME` for everything else."""

from __future__ import annotations

from collections.abc import Callable

from pluralis.errors import RecipeError, nearest
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
        raise RecipeError(f"there is no backbone {name!r}; {nearest(name, BACKBONES)} or 'timm:NAME'")
    return BACKBONES[name]()
