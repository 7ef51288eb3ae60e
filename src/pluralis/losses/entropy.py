"""Losses on the entropy of the unknown labels: raised by `em`, lowered by `entmin`."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pluralis.losses.base import Loss
from pluralis.losses.pointwise import pointwise
from pluralis.params import number


def em(logits: Tensor, labels: Tensor, alpha: float = 0.2, reduction: str = "mean") -> Tensor:
    """Entropy maximisation: unknown labels are pushed towards p = 1/2, gently far from it.

    L = −(1/NC) Σ [1(y=1) log f + 1(y=0) α H(f) + 1(y=−1) log(1−f)], H(f) = −[f log f + (1−f) log(1−f)], f = σ(z).
    Zhou et al., ECCV 2022, Eqs. 3-4; verified absent labels, which the paper does not have, take the cross-entropy.
    On unknown entries ∂L/∂z = α z f (1−f) / NC (Eq. 5).

    >>> z = torch.tensor([[0.0, 0.0]])
    >>> em(z, torch.tensor([[1, 0]]), alpha=1.0, reduction="none")
    tensor([[ 0.6931, -0.6931]])
    """
    return pointwise(partial(_em, alpha=alpha), logits, labels, reduction)


def entmin(logits: Tensor, labels: Tensor, alpha: float = 0.01, reduction: str = "mean") -> Tensor:
    """Entropy minimisation: unknown labels are pushed to the side that they are on.

    L = −(1/NC) Σ [1(y=1) log f − 1(y=0) α H(f) + 1(y=−1) log(1−f)], that is `em` with −α.
    Grandvalet and Bengio, NeurIPS 2004, as used by Zhou et al., ECCV 2022, Appendix B.2; verified absent labels take
    the cross-entropy.

    >>> entmin(torch.zeros(1, 2), torch.tensor([[1, 0]]), alpha=1.0, reduction="none")
    tensor([[0.6931, 0.6931]])
    """
    return em(logits, labels, -alpha, reduction)


class EM(Loss):
    """Entropy maximisation (see `functional.em`); `alpha` is the paper's value for VOC, and 0.1 for COCO.

    >>> EM(alpha=1.0)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.)
    """

    paper = "Zhou et al.: Acknowledging the Unknown for Multi-label Learning with Single Positive Labels, ECCV 2022"

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        self.alpha = number("loss em", "alpha", alpha, low=0.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return em(logits, labels, self.alpha)


class EntMin(Loss):
    """Entropy minimisation (see `functional.entmin`); Zhou et al. use 0.01 for VOC, 0.9 for COCO, 0.4 for NUS and CUB.

    >>> EntMin(alpha=1.0)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = "Grandvalet and Bengio: Semi-supervised Learning by Entropy Minimization, NeurIPS 2004"

    def __init__(self, alpha: float = 0.01) -> None:
        super().__init__()
        self.alpha = number("loss entmin", "alpha", alpha, low=0.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return entmin(logits, labels, self.alpha)


def _em(z: Tensor, y: Tensor, slope: bool, alpha: float) -> tuple[Tensor, Tensor | None]:
    sign = y.sign().to(z.dtype)
    known = sign.abs()
    u = z.abs()
    smaller = u.neg().sigmoid_()  # of p and 1−p
    log_larger = smaller.neg().log1p_()
    wrong = (z * sign).neg_()
    unknown_loss = torch.addcmul(log_larger * alpha, u, smaller, value=-alpha)  # −αH = −α(u·smaller − log larger)
    known_loss = wrong.clamp(min=0).sub_(log_larger)
    loss = unknown_loss.lerp_(known_loss, known)
    if not slope:
        return loss, None
    known_slope = wrong.sigmoid_().mul_(sign).neg_()
    unknown_slope = torch.addcmul(smaller, smaller, smaller, value=-1).mul_(z).mul_(alpha)
    return loss, unknown_slope.lerp_(known_slope, known)
