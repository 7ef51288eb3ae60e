"""Cross-entropy against soft labels with a weight for each entry, and entropy maximisation where there is none."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pluralis.losses.pointwise import pointwise


def soft_em(
    logits: Tensor, target: Tensor, weight: Tensor, alpha: float = 0.2, eps: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Entropy maximisation with soft labels t of weight w; w = 0 stands for "unknown".

    L = −(1/NC) Σ [ w·(t log f + (1−t) log(1−f)) + 1(w=0) α H(f) ],  H(f) = −[f log f + (1−f) log(1−f)],  f = σ(z)
    Zhou et al., ECCV 2022, Eq. 8: w = 1 and t = 1 for labels that are present, w = β and t = s (Eq. 7) for
    pseudo-labels. ∂L/∂z = w (f − t)/NC, and α z f (1−f)/NC where w = 0.
    With `eps` every logarithm is log(x + eps), as in the published implementation (1e-5): far from p = 1/2 a positive
    then loses its gradient.

    logits, target (in [0, 1]) and weight: [N, C]. Target and weight are constants.

    >>> z = torch.tensor([[0.0, 0.0, 2.0]])
    >>> soft_em(z, torch.tensor([[1.0, 0.0, 0.25]]), torch.tensor([[1.0, 0.0, 0.5]]), alpha=1.0, reduction="none")
    tensor([[ 0.6931, -0.6931,  0.8135]])
    """
    kernel = partial(_soft_em, alpha=alpha) if eps == 0 else partial(_soft_em_eps, alpha=alpha, eps=eps)
    # `pointwise` hands its kernel one number for each logit: target and weight share it as its two parts.
    return pointwise(kernel, logits, torch.complex(target, weight), reduction, coded=True)


def _soft_em(z: Tensor, y: Tensor, slope: bool, alpha: float) -> tuple[Tensor, Tensor | None]:
    t, w = y.real.to(z.dtype), y.imag.to(z.dtype)
    unknown = (w == 0).to(z.dtype)
    u = z.abs()
    smaller = u.neg().sigmoid_()  # of p and 1−p
    log_larger = smaller.neg().log1p_()
    cross = torch.addcmul(z.clamp(min=0), t, z, value=-1).sub_(log_larger)  # softplus(z) − t·z
    minus_entropy = torch.addcmul(log_larger * alpha, u, smaller, value=-alpha)
    loss = cross.mul_(w).addcmul_(minus_entropy, unknown)
    if not slope:
        return loss, None
    # (1−t)·p − t·(1−p) is p − t with all its digits where p is close to t = 1.
    cross_slope = torch.addcmul(z.sigmoid().mul_(1 - t), z.neg().sigmoid_(), t, value=-1)
    unknown_slope = torch.addcmul(smaller, smaller, smaller, value=-1).mul_(z).mul_(alpha)
    return loss, cross_slope.mul_(w).addcmul_(unknown_slope, unknown)


def _soft_em_eps(z: Tensor, y: Tensor, slope: bool, alpha: float, eps: float) -> tuple[Tensor, Tensor | None]:
    t, w = y.real.to(z.dtype), y.imag.to(z.dtype)
    unknown = (w == 0).to(z.dtype)
    p, rest = z.sigmoid(), z.neg().sigmoid_()
    log_p, log_rest = (p + eps).log_(), (rest + eps).log_()
    cross = -(t * log_p + (1 - t) * log_rest)
    loss = w * cross + alpha * unknown * (p * log_p + rest * log_rest)
    if not slope:
        return loss, None
    share_p, share_rest = p / (p + eps), rest / (rest + eps)
    cross_slope = (1 - t) * share_rest * p - t * share_p * rest
    unknown_slope = alpha * p * rest * (log_p - log_rest + share_p - share_rest)
    return loss, w * cross_slope + unknown * unknown_slope
