"""What the kernels of several losses share.

All formulas are evaluated from the smaller of p and 1−p, σ(−|z|), which never overflows and loses no digits:
−log p = max(−z, 0) − log1p(−σ(−|z|)), and −log(1−p) is the same of −z.

A kernel keeps to operations that PyTorch vectorises itself (sigmoid, log1p, log2, exp2, elu, arithmetic): exp, log,
expm1, tanh and logsigmoid bring a thread team of their own along, even for a small batch, where it costs more than it
gains, and comparisons and `where` are several times slower than arithmetic with a sign.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.errors import LabelError
from pluralis.losses.pointwise import check_inputs

LOG2E = 1 / math.log(2)
CERTAIN = 1e9  # added to a logit it leaves no doubt, whatever that was


def log_sigmoid(x: Tensor) -> Tensor:
    """min(x, 0) + log1p(−σ(−|x|)), in one operation where that brings no thread team along."""
    if not x.is_cpu or x.numel() <= 8192:
        return F.logsigmoid(x)
    return x.abs().neg_().sigmoid_().neg_().log1p_().add_(x.clamp(max=0))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) = −log σ(−x), in one operation that brings no thread team along.

    Beyond 40 it is x to the last digit of float64; the threshold of PyTorch's own choice would lose seven of them.
    """
    return F.softplus(x, threshold=40.0)


def where_present(z: Tensor, y: Tensor) -> Tensor:
    """1 where a label is present and 0 elsewhere, in the dtype of z, in one operation."""
    return torch.gt(y, 0, out=torch.empty_like(z))


def power(x: Tensor, q: float) -> Tensor:
    """x^q for x in [0, 1], or above 0 where q < 0, with 0^0 = 1."""
    if q == 0:
        return torch.ones_like(x)
    if q == 1:
        return x
    return x * x if q == 2 else x.log2().mul_(q).exp2_()


def known_cross_entropy(z: Tensor, y: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """−log p where y > 0, −log(1−p) where y < 0 and 0 where y = 0."""
    sign = y.sign().to(z.dtype)
    right = z * sign  # the logit of the label being as given
    loss = log_sigmoid(right).mul_(sign).mul_(sign).neg_()
    return loss, right.neg_().sigmoid_().mul_(sign).neg_() if slope else None


def signs(labels: Tensor) -> Tensor:
    """The labels as int8 in {+1, 0, -1}."""
    return labels.to(torch.int8) if labels.dtype == torch.bool else labels.sign().to(torch.int8)


def check_batch(logits: Tensor, labels: Tensor, reduction: str = "mean") -> None:
    """Raise unless logits and labels are [N, C]: for losses that look along rows or columns."""
    check_inputs(logits, labels, reduction)
    if logits.dim() != 2:
        raise LabelError(f"loss: logits have shape {tuple(logits.shape)}; this loss needs [N, C], a row for each image")
