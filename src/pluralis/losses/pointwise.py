"""Losses that are sums over entries: value and derivative in one walk over cache-sized blocks.

Autograd keeps every intermediate of an elementwise formula and reads it back later, which for a long formula costs
several times the memory and time of the numbers that matter. Here a *kernel* gives the loss and its derivative of a
block together, while the block is in the cache; the derivative is all that is kept, and the backward pass is one
multiplication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pluralis.errors import LabelError, RecipeError
from pluralis.inputs import check_labels

Kernel = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]
"""`kernel(z, y, slope) -> (loss, dloss_dz or None)`: elementwise, on a float block `z` and its labels `y` (> 0
present, < 0 verified absent, 0 unknown). It must not write to `z` or `y`, and gives None when `slope` is false."""

REDUCTIONS = ("mean", "sum", "none")

# What each of several threads gets of a block: PyTorch shares an operation among threads from 32,768 entries on. In
# trials with one and two threads a block of two such parts was the best, for its temporaries stay in the caches and the
# allocator keeps them; with four times as many it hands them back to the system after each block.
ENTRIES_A_THREAD = 33_000
MOST_THREADS = 8


def entries_per_block(logits: Tensor) -> int:
    """How many entries a kernel works on at a time; compiled, or away from the CPU, all of them."""
    if torch.compiler.is_compiling() or not logits.is_cpu:
        return max(1, logits.numel())
    return ENTRIES_A_THREAD * min(max(torch.get_num_threads(), 2), MOST_THREADS)


def pointwise(kernel: Kernel, logits: Tensor, labels: Tensor, reduction: str = "mean", coded: bool = False) -> Tensor:
    """Apply `kernel` to every entry and reduce.

    logits: float [N, C] (or any shape); half precision is computed in float32 and float64 stays float64.
    labels: the same shape, any integer or float dtype; bool means present or unknown. `coded`: they are numbers that
    the caller made of labels for its kernel, and may be any.
    Returns a scalar, or the shape of the logits for `reduction="none"`, in the dtype of the computation: a sum of
    half-precision losses must not overflow.

    >>> def square(z, y, slope):
    ...     return z * z, 2 * z if slope else None
    >>> z = torch.tensor([[1.0, -3.0]], requires_grad=True)
    >>> pointwise(square, z, torch.zeros(1, 2), "sum").backward()
    >>> z.grad
    tensor([[ 2., -6.]])
    """
    check_inputs(logits, labels, reduction, coded)
    if labels.dtype == torch.bool:
        labels = labels.to(torch.int8)
    if torch.is_grad_enabled() and logits.requires_grad:
        return _Pointwise.apply(logits, labels, kernel, reduction)
    return _walk(kernel, logits, labels, reduction, slope=False)[0]


def check_inputs(logits: Tensor, labels: Tensor, reduction: str, coded: bool = False) -> None:
    """Raise for shapes that differ, logits that are not floats, an unknown reduction, and labels that are none.

    The values of labels are looked at where they lie on the CPU: a device would have to be waited for.
    """
    if logits.shape != labels.shape:
        raise LabelError(
            f"loss: logits have shape {tuple(logits.shape)} but labels {tuple(labels.shape)}; "
            "give one label (+1, 0 or -1) for each logit"
        )
    if not logits.dim():
        raise LabelError("loss: logits and labels are scalars; give arrays of shape [N, C]")
    if not logits.is_floating_point():
        raise LabelError(f"loss: logits are {logits.dtype}; give the network's float outputs before the sigmoid")
    if reduction not in REDUCTIONS:
        raise RecipeError(f"loss: unknown reduction {reduction!r}; use one of {', '.join(REDUCTIONS)}")
    if not coded and labels.is_cpu and not torch.compiler.is_compiling():
        check_labels("loss", labels)


def only_once() -> None:
    """Raise where the backward pass is itself recorded: what it multiplies by is a constant to autograd.

    PyTorch's `once_differentiable` would let this pass where the incoming gradient has no graph, as that of a scalar
    has not, and a penalty on the gradient would silently lack most of its own. A loss that `torch.compile` has traced
    is beyond this check: never differentiate the gradient of a compiled one.
    """
    if torch.is_grad_enabled():
        raise RecipeError(
            "loss: it has no second derivative, so its gradient cannot be differentiated; leave out create_graph=True, "
            "or write the loss with `losses.Framework`, which runs through autograd"
        )


class _Pointwise(torch.autograd.Function):
    """Keeps the derivative from the forward walk; `backward` multiplies it by the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, kernel: Kernel, reduction: str) -> Tensor:
        value, derivative = _walk(kernel, logits, labels, reduction, slope=True)
        ctx.save_for_backward(derivative)
        ctx.scale = 1.0 / max(logits.numel(), 1) if reduction == "mean" else 1.0
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        only_once()
        (derivative,) = ctx.saved_tensors
        if ctx.scale != 1.0:
            grad = grad * ctx.scale
        if derivative.dtype == grad.dtype:
            return derivative * grad, None, None, None
        # A loss scale of 2^16 overflows float16 and 1/(N·C) underflows, so the product is formed in the wider type and
        # only then rounded. A scalar would not take part in type promotion; with as many dimensions it does.
        wide = grad.reshape(grad.shape or (1,) * derivative.dim())
        return (derivative * wide).to(derivative.dtype), None, None, None


def _walk(kernel: Kernel, logits: Tensor, labels: Tensor, reduction: str, slope: bool) -> tuple[Tensor, Tensor | None]:
    """Run the kernel block by block; the value in the dtype of the computation, the derivative in the logits'."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits, shape = logits.detach(), logits.shape
    entries = entries_per_block(logits)
    if logits.numel() <= entries:
        loss, slopes = kernel(logits.to(dtype), labels, slope)
        return reduce(loss, reduction), None if slopes is None else slopes.to(logits.dtype)

    logits, labels = logits.reshape(-1), labels.reshape(-1)
    derivative = torch.empty_like(logits) if slope else None
    losses = torch.empty_like(logits, dtype=dtype) if reduction == "none" else None

    def block(start: int) -> Tensor:
        here = slice(start, start + entries)
        loss, slopes = kernel(logits[here].to(dtype), labels[here], slope)
        if derivative is not None and slopes is not None:
            derivative[here] = slopes
        if losses is not None:
            losses[here] = loss
        return loss.sum()

    sums = [block(start) for start in range(0, len(logits), entries)]
    derivative = None if derivative is None else derivative.reshape(shape)
    if losses is not None:
        return losses.reshape(shape), derivative
    return torch.stack(sums).sum() / (len(logits) if reduction == "mean" else 1), derivative


def reduce(loss: Tensor, reduction: str) -> Tensor:
    """The mean, the sum, or the losses themselves; of nothing the mean is 0."""
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" and loss.numel() else loss.sum()
