"""The losses as pure functions of logits [N, C] and labels [N, C] in {+1 present, 0 unknown, -1 verified absent}.

All formulas are evaluated from the smaller of p and 1−p, σ(−|z|), which never overflows and loses no digits:
−log p = max(−z, 0) − log1p(−σ(−|z|)), and −log(1−p) is the same of −z.
Every function takes `reduction="mean" | "sum" | "none"`; the mean runs over all N·C entries unless it says otherwise.

The kernels at the end run inside the threads of `pointwise`. They keep to operations that PyTorch vectorises itself
(sigmoid, log1p, exp2, elu, arithmetic): exp, log, expm1, tanh and logsigmoid bring a thread team of their own along,
even for a small block, and comparisons and `where` are several times slower than arithmetic with a sign.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses.pointwise import pointwise

_LOG2E = 1 / math.log(2)
_CERTAIN = 1e9  # a logit that saturates the sigmoid whatever is added to it


def bce(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy of the known labels; unknown ones are left out.

    L = −(1/|K|) Σ_{K} [1(y=1) log p + 1(y=−1) log(1−p)], K = entries of the batch with y ≠ 0. The mean runs over the
    known entries; without any it is 0 with a gradient of 0. Durand et al., CVPR 2019, normalise by the known labels of
    each image; here it is those of the batch.

    >>> z = torch.tensor([[0.0, 5.0], [0.0, -5.0]])
    >>> bce(z, torch.tensor([[1, 0], [-1, 0]]))
    tensor(0.6931)
    """
    if reduction != "mean":
        return pointwise(_bce, logits, labels, reduction)
    total = pointwise(_bce, logits, labels, "sum")
    return total / torch.count_nonzero(labels).clamp(min=1)


def an(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Assume negative: every label that is not known to be present counts as absent.

    L = −(1/NC) Σ [1(y=1) log p + 1(y≠1) log(1−p)]. Cole et al., CVPR 2021; Zhou et al., ECCV 2022, Eq. 1.

    >>> z = torch.tensor([[0.0, 0.0, -20.0]])
    >>> an(z, torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[6.9315e-01, 6.9315e-01, 2.0612e-09]])
    """
    return pointwise(_an, logits, labels, reduction)


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


def gr(
    logits: Tensor,
    labels: Tensor,
    w: float = 0.0,
    b: float = -2.0,
    mu: float = 0.5,
    sigma: float = 2.0,
    q1: float = 0.01,
    q2: float = 0.01,
    q3: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Generalised robust loss at one epoch: soft pseudo-labels k̂ and weights v for the unknown labels.

    L = (1/NC) Σ  L1                              y = +1
                  v·[k̂·L2 + (1−k̂)·L3]             y = 0
                  L3                              y = −1, where k̂ is known to be 0 (not in the paper)
    k̂ = 1/(1 + exp(−(w·p + b))), v = exp(−(p−μ)²/(2σ²)), both without gradient,
    L1 = (1 − p^{q1})/q1, L2 = (1 − p^{q2})/q2, L3 = (1 − (1−p)^{q3})/q3; q = 0 is the limit −log.
    Chen et al., IJCAI 2024, Eqs. 4, 5, 7, 11, 14. Eq. 4 divides by N only; we divide by N·C, as for all losses here.
    The defaults are the parameters of epoch 0.

    >>> z = torch.tensor([[0.0, 0.0]])
    >>> gr(z, torch.tensor([[-1, 0]]), b=-100.0, reduction="none")
    tensor([[0.5000, 0.5000]])
    """
    kernel = partial(_gr, w=w, b=b, mu=mu, sigma=sigma, q1=q1, q2=q2, q3=q3)
    return pointwise(kernel, logits, labels, reduction)


def _bce(z: Tensor, y: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    sign = y.sign().to(z.dtype)
    right = z * sign  # the logit of the label being as given
    loss = _log_sigmoid(right).mul_(sign).mul_(sign).neg_()
    return loss, right.neg_().sigmoid_().mul_(sign).neg_() if slope else None


def _log_sigmoid(x: Tensor) -> Tensor:
    """min(x, 0) + log1p(−σ(−|x|)), in one operation where that brings no thread team along."""
    if not x.is_cpu or x.numel() <= 8192:
        return F.logsigmoid(x)
    return x.abs().neg_().sigmoid_().neg_().log1p_().add_(x.clamp(max=0))


def _an(z: Tensor, y: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    sign = y.sign().clamp_(min=0).to(z.dtype).mul_(2).sub_(1)
    right = z * sign
    loss = _log_sigmoid(right).neg_()
    return loss, right.neg_().sigmoid_().mul_(sign).neg_() if slope else None


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


def _gr(
    z: Tensor,
    y: Tensor,
    slope: bool,
    w: float,
    b: float,
    mu: float,
    sigma: float,
    q1: float,
    q2: float,
    q3: float,
) -> tuple[Tensor, Tensor | None]:
    sign = y.sign().to(z.dtype)
    known = sign.abs()
    p, rest = z.sigmoid(), z.neg().sigmoid_()
    distance = (p - mu).square_()
    v = distance.addcmul_(distance, known, value=-1).mul_(-0.5 * _LOG2E / sigma**2).exp2_()  # 1 where known
    k = (p * w).add_(b).add_(sign, alpha=_CERTAIN).sigmoid_()  # exactly 1 or 0 where known
    up = k.mul_(v)
    down = v.sub_(up)

    log_p = _log_sigmoid(z) if (q1, q2) != (1, 1) else z
    log_rest = _log_sigmoid(-z) if q3 != 1 else z
    loss_up, scale_up = _robust(rest, log_p, q2)
    loss_down, scale_down = _robust(p, log_rest, q3)
    slope_up = _robust_slope(p, rest, loss_up, q2) if slope else None
    if q1 != q2:
        loss_one, scale_one = _robust(rest, log_p, q1)
        if slope_up is not None:
            slope_up = slope_up.lerp(_robust_slope(p, rest, loss_one, q1), known)
        loss_up, scale_up = (loss_up * scale_up).lerp_(loss_one * scale_one, known), 1.0
    loss = loss_down * down
    loss = (loss if scale_down == 1 else loss.mul_(scale_down)).addcmul_(loss_up, up, value=scale_up)
    if slope_up is None:
        return loss, None
    return loss, _robust_slope(rest, p, loss_down, q3).mul(down).addcmul_(slope_up, up, value=-1)


def _robust(rest: Tensor, log_p: Tensor, q: float) -> tuple[Tensor, float]:
    """(1 − p^q)/q as a tensor and a factor; `rest` is 1−p with all its digits."""
    if q == 0:
        return log_p, -1.0
    if q == 1:
        return rest, 1.0
    return F.elu_(log_p * q), -1.0 / q  # elu(x) is expm1(x) for x < 0


def _robust_slope(p: Tensor, rest: Tensor, loss: Tensor, q: float) -> Tensor:
    """p^q·(1−p), the size of its derivative by z, from the tensor that `_robust` gave."""
    if q == 0:
        return rest
    if q == 1:
        return p * rest
    return torch.addcmul(rest, loss, rest)
