"""Losses in one kernel each, on a GPU with Triton: there most of their time is the starting of kernels.

Every function here has a twin in PyTorch, which runs everywhere else and in float64, with the same formula.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pluralis.losses.quadrature import GRID, MOST_WRITTEN, rule_table
from pluralis.triton_there import has_triton


def fusible(x: Tensor) -> bool:
    """Computed in float32 on the current GPU, where Triton starts its kernels, and Triton is there."""
    if torch.compiler.is_compiling() or not x.is_cuda or x.dtype == torch.float64:
        return False
    return x.device.index == torch.cuda.current_device() and has_triton()


def one_rows(z: Tensor, y: Tensor, nodes: int, a: float, absent: bool, slope: bool) -> tuple[Tensor, Tensor | None]:
    """`selection_one.one_likelihood`: [b] in float64 the loss of each row of z, y [b, C], and its derivative [b, C]."""
    from pluralis.losses import fused_kernels as kernels

    z, y = z.contiguous(), _numbers(y).contiguous()
    loss = torch.empty(len(z), dtype=torch.float64, device=z.device)
    derivative = torch.empty_like(z) if slope else None
    if len(z):
        kernels.one_rows[(len(z),)](
            z, y, rule_table(nodes, a, z.device, several=True)[1], loss, derivative, z.shape[1], GRID, MOST_WRITTEN,
            ABSENT=absent, SLOPE=slope, NODES=nodes, ROOM=_power_of_two(nodes), **_block(z.shape[1]),
        )  # fmt: skip
    return loss, derivative


def rate_rows(
    z: Tensor, y: Tensor, log_rate: float | Tensor, log_unwritten: float | Tensor, absent: bool, slope: bool
) -> tuple[Tensor, Tensor | None]:
    """`selection_rate.rate_likelihood`: [b] in float64 the loss of each row of z, y [b, C], and its derivative."""
    from pluralis.losses import fused_kernels as kernels

    z, y = z.contiguous(), _numbers(y).contiguous()
    loss = torch.empty(len(z), dtype=torch.float64, device=z.device)
    derivative = torch.empty_like(z) if slope else None
    logs, each = (log_rate, log_unwritten), isinstance(log_rate, Tensor)
    tensors = [log.to(z).expand(z.shape[1]).contiguous() if isinstance(log, Tensor) else None for log in logs]
    numbers = [0.0 if isinstance(log, Tensor) else log for log in logs]
    if len(z):
        kernels.rate_rows[(len(z),)](
            z, y, *tensors, *numbers, loss, derivative, z.shape[1], PER_CLASS=each, ABSENT=absent, SLOPE=slope,
            **_block(z.shape[1]),
        )  # fmt: skip
    return loss, derivative


def selective(
    z: Tensor,
    y: Tensor,
    slope: bool,
    among: Tensor | None,
    common: Tensor | None,
    gammas: tuple[float, float, float],
) -> tuple[Tensor, Tensor | None]:
    """`csl`'s kernel: loss and derivative of every entry of z, y [N, C].

    Left out are unknown entries where `among` [N, C], see `csl.marked`, is +∞, or the class is `common` ([C] bool).
    """
    from pluralis.losses import fused_kernels as kernels

    z, y = z.contiguous(), y.contiguous()
    loss, derivative = torch.empty_like(z), torch.empty_like(z) if slope else None
    if z.numel():
        if common is not None:
            common = common.expand(z.shape[1]).contiguous().view(torch.int8)
        kernels.selective[(-(-z.numel() // 1024),)](
            z, y, among, common, loss, derivative, z.numel(), z.shape[1], *gammas, LIKELY=among is not None,
            COMMON=common is not None, SLOPE=slope, BLOCK=1024, num_warps=4,
        )  # fmt: skip
    return loss, derivative


def contrast_fits(x: Tensor, queue: Tensor) -> bool:
    """A program for each row of x [A, d] walks over x and the queue [K, d] before matrix products would be started."""
    anchors, dim = x.shape
    return anchors <= _ANCHORS and dim <= _DIM and (anchors + len(queue)) * dim <= _WALK and fusible(x)


def unit_contrast(
    x: Tensor,
    twins: Tensor | None,
    classes: Tensor,
    queue: Tensor,
    queue_classes: Tensor,
    tau: float,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """`contrast.by_matrices` without matrices: the value, and its derivative by x and, below that, by the twins."""
    from pluralis.losses import contrast_kernels as kernels

    x, released, (anchors, dim) = x.contiguous(), scale is None, x.shape
    width = max(16, _power_of_two(dim))
    two, twins = twins is not None, None if twins is None else twins.contiguous()
    shape = {"TWINS": two, "RELEASED": released, "DIM": width, "BLOCK": 8192 // width, "num_warps": 16}
    places = x, twins, classes.contiguous(), queue.contiguous(), queue_classes.contiguous(), x.new_empty(4 * anchors)
    value, slope = x.new_empty(()), x.new_empty(2 * anchors if two else anchors, dim)
    kernels.anchor_values[(anchors,)](
        *places, anchors, len(queue), dim, 1 / tau, 1.0 if scale is None else scale, **shape
    )
    kernels.anchor_slopes[(anchors,)](*places, value, slope, anchors, len(queue), dim, 1 / tau, **shape)
    return value, slope


def contrast_rows(
    similar: Tensor, classes: Tensor, queue_classes: Tensor, scale: float, twins: bool, released: bool
) -> Tensor:
    """[A] of each anchor `scale` times the sum over its partners; if `released`, [2, A]: the mean, and 1 if it has any.

    similar: [A, A + K], contiguous, whose diagonal counts if it is of `twins`; minus the derivative by it takes its
    place.
    """
    from pluralis.losses import contrast_kernels as kernels

    rows = similar.new_empty((2, len(similar)) if released else (len(similar),))
    kernels.contrast_rows[(len(similar),)](
        similar, classes.contiguous(), queue_classes.contiguous(), rows, len(classes), len(queue_classes), scale,
        TWINS=twins, RELEASED=released, **_block(similar.shape[1]),
    )  # fmt: skip
    return rows


# What `contrast_fits`: two programs for each of the 132 multiprocessors of an H200; a row that fits in a tile; and as
# much of a walk as takes a program less than the host takes to start the launches of the other way.
_ANCHORS, _DIM, _WALK = 256, 1024, 1 << 21


def _numbers(y: Tensor) -> Tensor:
    return y.to(torch.int8) if y.dtype == torch.bool else y


def _block(columns: int) -> dict[str, int]:
    """How many columns a program takes at a time, and the warps that share them."""
    block = min(1024, max(64, _power_of_two(columns)))
    return {"BLOCK": block, "num_warps": 8 if block == 1024 else 4}


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 1 else 1
