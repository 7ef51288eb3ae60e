"""The backbones by name: a literal table, `timm:NAME` for everything else, `features:D` for vectors of D numbers."""

from __future__ import annotations

from collections.abc import Callable

from pluralis.errors import RecipeError, nearest
from pluralis.models.base import Backbone
from pluralis.models.efficientnet import EfficientNetLite0
from pluralis.models.identity import feature_backbone
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
_FEATURES = "features:"


def create_backbone(name: str) -> Backbone:
    """A backbone with random weights, by its name in BACKBONES, as `timm:NAME` or as `features:D`.

    >>> create_backbone("tiny").out_channels
    96
    """
    if name.startswith(_TIMM):
        return TimmBackbone(name.removeprefix(_TIMM))
    if name.startswith(_FEATURES):
        return feature_backbone(name.removeprefix(_FEATURES))
    if name not in BACKBONES:
        raise RecipeError(f"there is no backbone {name!r}; {nearest(name, BACKBONES)} or 'timm:NAME'")
    return BACKBONES[name]()
