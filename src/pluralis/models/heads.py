"""Heads: from a feature map to one logit per class. A literal table of names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.errors import RecipeError
from pluralis.labels import Labels


class Head(nn.Module):
    """Maps features [B, D, h, w] or pooled features [B, D] to logits [B, C]."""

    def set_bias(self, values: Tensor) -> None:
        """Sets the starting bias of each class from `values` [C]: log-odds of its frequency, or zeros."""
        raise NotImplementedError

    def start(self, labels: Labels) -> None:
        """What a head takes from the training labels before the first step, such as which labels occur together."""


class LinearHead(Head):
    """Global average pooling, dropout and a linear layer, whose bias starts at zero.

    >>> LinearHead(8, 3)(torch.zeros(2, 8, 4, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(in_channels, num_classes)
        nn.init.zeros_(self.fc.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.fc(self.dropout(pool(features)))

    def set_bias(self, values: Tensor) -> None:
        copy_bias(self.fc.bias, values)


def pool(features: Tensor) -> Tensor:
    """Global average: [B, D, h, w] -> [B, D]; features that are [B, D] already pass unchanged."""
    if features.dim() == 2:
        return features
    return F.adaptive_avg_pool2d(features, 1).flatten(1)


def copy_bias(bias: Tensor, values: Tensor) -> None:
    """Writes `values` [C] into the parameter `bias` [C]; refuses other shapes and what is not finite."""
    if values.shape != bias.shape:
        raise RecipeError(
            f"the starting bias has shape {tuple(values.shape)} but the head has {bias.shape[0]} classes: "
            "give one value per class"
        )
    if not bool(torch.isfinite(values).all()):
        classes = torch.nonzero(~torch.isfinite(values)).flatten().tolist()
        raise RecipeError(
            f"the starting bias is not finite for class {classes[0]} ({len(classes)} in all): a class that "
            "is never or always seen has infinite log-odds, so bound the frequency first"
        )
    with torch.no_grad():
        bias.copy_(values)


HEADS: dict[str, Callable[..., Head]] = {
    "linear": LinearHead,
}
