"""Cross-entropy of the labels that are known; unknown ones say nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from pluralis.errors import RecipeError
from pluralis.losses.base import Loss
from pluralis.losses.kernels import check_batch, known_cross_entropy, log_sigmoid, signs
from pluralis.losses.pointwise import pointwise
from pluralis.params import number


def bce(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy of the known labels; unknown ones are left out.

    L = −(1/|K|) Σ_{K} [1(y=1) log p + 1(y=−1) log(1−p)], K = entries of the batch with y ≠ 0. The mean runs over the
    known entries; without any it is 0 with a gradient of 0. Durand et al., CVPR 2019, weigh each image by its known
    share (see `partial_bce`); here all known labels of the batch count alike.

    >>> z = torch.tensor([[0.0, 5.0], [0.0, -5.0]])
    >>> bce(z, torch.tensor([[1, 0], [-1, 0]]))
    tensor(0.6931)
    """
    if reduction != "mean":
        return pointwise(known_cross_entropy, logits, labels, reduction)
    total = pointwise(known_cross_entropy, logits, labels, "sum")
    known = labels.sign() if labels.is_floating_point() else labels  # NaN, which a device lets pass, is unknown
    return total / torch.count_nonzero(known).clamp(min=1)


def partial_bce(
    logits: Tensor,
    labels: Tensor,
    alpha: float = -4.45,
    beta: float = 5.45,
    gamma: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Partial-BCE: cross-entropy of the known labels, each image weighed by how much of it is known.

    L = −(1/NC) Σ_n g(x_n) Σ_c [1(y=1) log p + 1(y=−1) log(1−p)], g(x) = α x^γ + β, x_n = known share of image n.
    Durand et al., CVPR 2019, whose α, β make g(0.1) = 5 and g(1) = 1. Absent labels are a part of it. No weight may be
    negative, which would turn labels around: β ≥ 0, α + β ≥ 0, γ ≥ 0.

    >>> z = torch.zeros(1, 2)
    >>> partial_bce(z, torch.tensor([[1, 0]]), alpha=-1.0, beta=3.0, reduction="none")
    tensor([[1.7329, 0.0000]])
    """
    check_batch(logits, labels, reduction)
    _check_weights(alpha, beta, gamma)
    known = signs(labels)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    share = known.to(dtype).abs_().sum(1) / max(known.shape[1], 1)
    weight = share.pow_(gamma).mul_(alpha).add_(beta)
    return pointwise(_weighted, logits, known * weight[:, None], reduction, coded=True)


class BCE(Loss):
    """Binary cross-entropy of the known labels (see `functional.bce`).

    >>> BCE()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = "Durand, Mehrasa, Mori: Learning a Deep ConvNet for Multi-label Classification with Partial Labels, 2019"
    start_bias = "log-odds"
    batch_coupled = True  # the mean runs over the known entries of the batch

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return bce(logits, labels)


class PartialBCE(Loss):
    """Cross-entropy of the known labels, images weighed by their known share (see `functional.partial_bce`).

    >>> PartialBCE()(torch.zeros(1, 2), torch.tensor([[1, -1]]))
    tensor(0.6931)
    """

    paper = BCE.paper
    start_bias = "log-odds"

    def __init__(self, alpha: float = -4.45, beta: float = 5.45, gamma: float = 1.0) -> None:
        super().__init__()
        _check_weights(alpha, beta, gamma)
        self.alpha, self.beta, self.gamma = float(alpha), float(beta), float(gamma)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return partial_bce(logits, labels, self.alpha, self.beta, self.gamma)


def _check_weights(alpha: float, beta: float, gamma: float) -> None:
    """Raise unless α x^γ + β ≥ 0 for every x from 0 to 1."""
    number("loss partial-bce", "alpha", alpha)
    number("loss partial-bce", "beta", beta, low=0.0)
    number("loss partial-bce", "gamma", gamma, low=0.0)
    if alpha + beta < 0:
        raise RecipeError(
            f"loss partial-bce: alpha + beta is {alpha + beta:g}, a negative weight for an image whose labels are all "
            "known; give a sum of at least 0"
        )


def _weighted(z: Tensor, y: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """Cross-entropy times |y|: the labels carry a weight."""
    right = z * y.sign()
    loss = log_sigmoid(right).mul_(y.abs()).neg_()
    return loss, right.neg_().sigmoid_().mul_(y).neg_() if slope else None
