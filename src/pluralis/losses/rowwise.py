"""Losses of whole rows: value and derivative in one walk over blocks of rows, as `pointwise` does it for entries.

For likelihoods that tie the labels of an image together: a row has a loss, an entry alone has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pluralis.losses.kernels import check_batch
from pluralis.losses.pointwise import entries_per_block, only_once

Rows = tuple[Tensor, Tensor | None, Tensor | None]
RowKernel = Callable[[Tensor, Tensor, bool], Rows]
"""`kernel(z, y, slope) -> (loss [b], dloss_dz [b, C], dloss_dparameter [C])` of a block of rows z [b, C] in float32 or
float64 and their labels y [b, C]; the last is None for a loss without a parameter, the last two if `slope` is false."""

ENTRIES_ON_DEVICE = 2**24  # hardly ever more than one block, since every launch counts; some 600 MB of temporaries


def rowwise(
    kernel: RowKernel, logits: Tensor, labels: Tensor, reduction: str = "mean", parameter: Tensor | None = None
) -> Tensor:
    """Apply `kernel` to every row and reduce: the mean runs over all N·C entries, "none" gives one loss a row [N].

    logits: float [N, C]; half precision is computed in float32 and float64 stays float64. labels: [N, C], any integer
    or float dtype; bool means present or unknown. `parameter` [C] is what the kernel's last result is the derivative
    by; with one there is no "none".

    >>> def square(z, y, slope):
    ...     return (z * z).sum(1), 2 * z if slope else None, None
    >>> z = torch.tensor([[1.0, -3.0]], requires_grad=True)
    >>> rowwise(square, z, torch.zeros(1, 2)).backward()
    >>> z.grad
    tensor([[ 1., -3.]])
    """
    check_batch(logits, labels, reduction)
    wanted = logits.requires_grad or (parameter is not None and parameter.requires_grad)
    if torch.is_grad_enabled() and wanted:
        total: Tensor = _Rowwise.apply(logits, labels, parameter, kernel, reduction)
        return total
    return _reduce(walk_rows(kernel, logits, labels, slope=False)[0], logits, reduction)


def walk_rows(kernel: RowKernel, logits: Tensor, labels: Tensor, slope: bool = True) -> Rows:
    """Run the kernel block by block, without a graph; the derivative by the logits has their dtype."""
    dtype, logits = torch.promote_types(logits.dtype, torch.float32), logits.detach()
    entries = entries_per_block(logits) if logits.is_cpu else ENTRIES_ON_DEVICE
    rows = max(1, entries // max(1, logits.shape[1]))
    if torch.compiler.is_compiling() or len(logits) <= rows:
        loss, slopes, pull = kernel(logits.to(dtype), labels, slope)
        return loss, None if slopes is None else slopes.to(logits.dtype), pull

    derivative = torch.empty_like(logits, memory_format=torch.contiguous_format) if slope else None

    def block(start: int) -> tuple[Tensor, Tensor | None]:
        here = slice(start, start + rows)
        loss, slopes, pull = kernel(logits[here].to(dtype), labels[here], slope)
        if derivative is not None and slopes is not None:
            derivative[here] = slopes
        return loss, pull

    parts = [block(start) for start in range(0, len(logits), rows)]
    pulls = [pull for _, pull in parts if pull is not None]
    return torch.cat([loss for loss, _ in parts]), derivative, torch.stack(pulls).sum(0) if pulls else None


class _Rowwise(torch.autograd.Function):
    """Keeps the derivatives from the forward walk; `backward` multiplies them by the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, parameter: Tensor | None, kernel: RowKernel, reduction: str
    ) -> Tensor:
        loss, derivative, pull = walk_rows(kernel, logits, labels)
        ctx.save_for_backward(derivative, pull)
        ctx.scale = 1.0 / max(logits.numel(), 1) if reduction == "mean" else 1.0
        ctx.parameter_dtype = None if parameter is None else parameter.dtype
        return _reduce(loss, logits, reduction)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        only_once()
        derivative, pull = ctx.saved_tensors
        if ctx.scale != 1.0:
            grad = grad * ctx.scale
        by_parameter = None if pull is None else (pull * grad).to(ctx.parameter_dtype)
        if derivative.dtype == grad.dtype and not grad.dim():
            return derivative * grad, None, by_parameter, None, None
        # With as many dimensions as the derivative the wider type wins: a loss scale of 2^16 overflows float16.
        return (derivative * grad.reshape(-1, 1)).to(derivative.dtype), None, by_parameter, None, None


def _reduce(loss: Tensor, logits: Tensor, reduction: str) -> Tensor:
    """Summed in the kernel's float64 and only then rounded to the dtype of the computation."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if reduction == "none":
        return loss.to(dtype)
    total = loss.sum()
    count = max(logits.numel(), 1) if reduction == "mean" else 1
    return torch.div(total, count, out=torch.empty_like(total, dtype=dtype))
