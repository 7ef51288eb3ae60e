"""Networks: `create_model` puts a backbone, its pre-trained weights and a head together by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pluralis.errors import RecipeError, nearest
from pluralis.models.backbones import BACKBONES, create_backbone
from pluralis.models.base import Backbone
from pluralis.models.heads import CamBoostHead, Head, LinearHead, MLPHead
from pluralis.models.label_decoder import LabelDecoder
from pluralis.models.map_pooling import CSRAHead, LogMeanExpHead, heat_maps, overlay
from pluralis.models.network import Network
from pluralis.models.semantic_graph import SemanticGraphHead
from pluralis.models.stochastic_depth import set_drop_path
from pluralis.models.weights import load_weights

__all__ = [
    "BACKBONES",
    "HEADS",
    "Backbone",
    "Head",
    "LinearHead",
    "Network",
    "create_backbone",
    "create_model",
    "heat_maps",
    "load_weights",
    "overlay",
]

HEADS: dict[str, Callable[..., Head]] = {
    "linear": LinearHead,
    "cam-boost": CamBoostHead,
    "lse": LogMeanExpHead,
    "csra": CSRAHead,
    "mlp": MLPHead,
    "label-decoder": LabelDecoder,
    "semantic-graph": SemanticGraphHead,
}


def create_model(
    backbone: str,
    num_classes: int,
    head: str = "linear",
    weights: str | None = None,
    *,
    sha256: str | None = None,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    normalize: bool = True,
    head_params: Mapping[str, Any] | None = None,
) -> Network:
    """A network with `num_classes` logits.

    backbone     a name of BACKBONES, or "timm:NAME"
    head         a name of HEADS; `head_params` are further arguments of its constructor
    weights      None for random ones, "imagenet", or the path of a file; `sha256` is the hash of that file
    dropout      probability, applied before the head
    drop_path    residual block i of n is left out for an image of a training step with the probability i/n of this
    normalize    False when the images come normalised already

    >>> create_model("tiny", 20).head.fc.out_features
    20
    """
    if head not in HEADS:
        raise RecipeError(f"there is no head {head!r}; {nearest(head, HEADS)}")
    if num_classes < 1:
        raise RecipeError(f"a network needs at least one class, not {num_classes}: check the class list")
    for name, value in (("dropout", dropout), ("drop_path", drop_path)):
        if not 0.0 <= value < 1.0:
            raise RecipeError(f"{name} is {value}: give a probability from 0 up to, but not including, 1")
    constructor = HEADS[head]
    extra = dict(head_params or {})
    _check_head_params(head, extra)
    network_backbone = create_backbone(backbone)
    load_weights(network_backbone, weights, sha256)
    set_drop_path(network_backbone, drop_path)
    return Network(
        network_backbone,
        constructor(network_backbone.out_channels, num_classes, dropout=dropout, **extra),
        normalize,
    )


def _check_head_params(head: str, params: dict[str, Any]) -> None:
    """Refuses arguments that the constructor of the head does not have, or that `create_model` fills in."""
    own = set(inspect.signature(HEADS[head]).parameters) - {"in_channels", "num_classes", "dropout"}
    for name in params:
        if name not in own:
            choice = ", ".join(sorted(own)) or "none"
            raise RecipeError(f"head '{head}' has no parameter '{name}': its parameters are {choice}")
