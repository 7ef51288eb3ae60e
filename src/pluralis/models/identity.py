"""A backbone for those who have features already: vectors go through as they are."""

from __future__ import annotations

from torch import Tensor

from pluralis.errors import RecipeError
from pluralis.models.base import Backbone


class FeatureBackbone(Backbone):
    """Feature vectors [B, D] in place of images. Its network must not normalise: vectors have no colours.

    >>> from pluralis.models import create_model
    >>> import torch
    >>> create_model("features:72", 6, normalize=False)(torch.zeros(2, 72)).shape
    torch.Size([2, 6])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.name = f"features:{dim}"
        self.out_channels = dim
        self.stage_names = ()

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != self.out_channels:
            raise RecipeError(
                f"backbone '{self.name}' takes vectors [B, {self.out_channels}], not {list(x.shape)}:"
                " give the features that it was made for"
            )
        return x


def feature_backbone(size: str) -> FeatureBackbone:
    """From the text after `features:` in a recipe."""
    if not size.isdecimal() or not 1 <= int(size) <= 2**24:
        raise RecipeError(f"backbone 'features:{size}': write the length of the vectors, such as 'features:1280'")
    return FeatureBackbone(int(size))
