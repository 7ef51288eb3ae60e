"""Losses of whole columns, with their derivative in closed form, as `rowwise` does it for rows.

For losses that tie the images of a batch together, a class at a time: a column has a loss, an entry alone has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pluralis.losses.kernels import check_batch
from pluralis.losses.pointwise import entries_per_block, only_once, reduce

Columns = tuple[Tensor, Tensor | None]
ColumnKernel = Callable[[Tensor, Tensor, slice, bool], Columns]
"""`kernel(z, y, here, slope) -> (loss [c], dloss_dz [N, c])` of the columns `here`: their logits z [N, c] in float32 or
float64, N > 0, and labels y [N, c]; the last is None if `slope` is false."""


def columnwise(kernel: ColumnKernel, logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Apply `kernel` to the columns and reduce: the mean is over the C classes, "none" gives one loss a class [C].

    logits: float [N, C]; half precision is computed in float32 and float64 stays float64. labels: [N, C], any integer
    or float dtype; bool means present or unknown. Of no rows every class has a loss of 0.

    >>> def square(z, y, here, slope):
    ...     return (z * z).sum(0), 2 * z if slope else None
    >>> z = torch.tensor([[1.0, -3.0]], requires_grad=True)
    >>> columnwise(square, z, torch.zeros(1, 2)).backward()
    >>> z.grad
    tensor([[ 1., -3.]])
    """
    check_batch(logits, labels, reduction)
    if not len(logits):
        return reduce(wide(logits).sum(0), reduction)
    if torch.is_grad_enabled() and logits.requires_grad:
        total: Tensor = _Columnwise.apply(logits, labels, kernel, reduction)
        return total
    return reduce(_walk(kernel, logits, labels, slope=False)[0], reduction)


def wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _walk(kernel: ColumnKernel, logits: Tensor, labels: Tensor, slope: bool) -> Columns:
    """Run the kernel block by block, without a graph."""
    logits, (rows, classes) = logits.detach(), logits.shape
    columns = max(1, 4 * entries_per_block(logits) // rows)  # wide: each row of a block is a short piece of memory
    if columns >= classes:
        return kernel(wide(logits), labels, slice(0, classes), slope)

    derivative = torch.empty_like(logits, dtype=wide(logits[:0]).dtype) if slope else None

    def block(start: int) -> Tensor:
        here = slice(start, start + columns)
        loss, slopes = kernel(wide(logits[:, here]), labels[:, here], here, slope)
        if derivative is not None and slopes is not None:
            derivative[:, here] = slopes
        return loss

    return torch.cat([block(start) for start in range(0, classes, columns)]), derivative


class _Columnwise(torch.autograd.Function):
    """Keeps the derivative from the way forward; `backward` multiplies it by the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, kernel: ColumnKernel, reduction: str) -> Tensor:
        loss, slope = _walk(kernel, logits, labels, slope=True)
        ctx.save_for_backward(slope)
        ctx.dtype = logits.dtype
        ctx.scale = 1.0 / max(loss.numel(), 1) if reduction == "mean" else 1.0
        return reduce(loss, reduction)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        only_once()
        (slope,) = ctx.saved_tensors
        return (slope * (grad * ctx.scale)).to(ctx.dtype), None, None, None
