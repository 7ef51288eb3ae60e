"""Stochastic depth: residual branches that are left out for some of the images of a training step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.models.base import Backbone


class Skip(nn.Module):
    """x + y, where y is a residual branch; while training with a `rate` above 0, x + y·b/(1−rate) with b ~ Bernoulli.

    b is drawn for each image: it is 0 with the chance `rate`, and what is left is scaled up, so that the mean over b is
    x + y. Huang et al., ECCV 2016, "Deep Networks with Stochastic Depth"; EfficientNet calls it drop connect.

    >>> skip = Skip()
    >>> skip(torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1)).flatten()
    tensor([2., 2.])
    """

    rate = 0.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x + y
        kept = torch.rand(len(y), 1, 1, 1, device=y.device).ge_(self.rate).div_(1 - self.rate)
        return torch.addcmul(x, y, kept.to(y.dtype))


def set_drop_path(backbone: Backbone, rate: float) -> None:
    """Give block i of n, counted from 0, the rate i/n·`rate`; of EfficientNet blocks without a skip count too."""
    skips = [module for module in backbone.modules() if isinstance(module, Skip)]
    if rate and not skips:
        raise RecipeError(f"backbone '{backbone.name}' has no branches to leave out: set model.drop_path = 0")
    for number, skip in enumerate(skips):
        skip.rate = rate * number / len(skips)
