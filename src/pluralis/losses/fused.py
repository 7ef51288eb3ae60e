"""Losses in one kernel each, on a GPU with Triton: there most of their time is the starting of kernels.

Every function here has a twin in PyTorch, which runs everywhere else and in float64, with the same formula.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pluralis.losses.quadrature import rule_table


def fusible(x: Tensor) -> bool:
    """Float32 on the current GPU, where Triton starts its kernels, and Triton is there."""
    if torch.compiler.is_compiling() or not x.is_cuda or x.dtype != torch.float32:
        return False
    return x.device.index == torch.cuda.current_device() and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def one_rows(z: Tensor, y: Tensor, nodes: int, a: float, absent: bool, slope: bool) -> tuple[Tensor, Tensor | None]:
    """`selection_one.one_likelihood`: [b] in float64 the loss of each row of z, y [b, C], and its derivative [b, C]."""
    from pluralis.losses import fused_kernels as kernels

    z, y = z.contiguous(), _numbers(y).contiguous()
    rules = rule_table(nodes, a, z.device)
    loss = torch.empty(len(z), dtype=torch.float64, device=z.device)
    derivative = torch.empty_like(z) if slope else None
    if len(z):
        kernels.one_rows[(len(z),)](
            z, y, rules, loss, derivative, z.shape[1], len(rules), ABSENT=absent, SLOPE=slope, NODES=nodes,
            ROOM=_power_of_two(nodes), **_block(z.shape[1]),
        )  # fmt: skip
    return loss, derivative


def selective(z: Tensor, code: Tensor, gammas: tuple[float, float, float], slope: bool) -> tuple[Tensor, Tensor | None]:
    """`csl`'s kernel: loss and derivative of every entry."""
    from pluralis.losses import fused_kernels as kernels

    z, code = z.contiguous(), code.contiguous()
    loss, derivative = torch.empty_like(z), torch.empty_like(z) if slope else None
    if z.numel():
        grid = (-(-z.numel() // 1024),)
        kernels.selective[grid](z, code, loss, derivative, z.numel(), *gammas, SLOPE=slope, BLOCK=1024, num_warps=4)
    return loss, derivative


def contrast_rows(similar: Tensor, classes: Tensor, queue_classes: Tensor, released: bool) -> Tensor:
    """[2, A] of each anchor the sum over its partners (a mean if `released`), and 1 where it has any, else 0.

    similar: [A, A + K], contiguous; minus the derivative by it takes its place.
    """
    from pluralis.losses import fused_kernels as kernels

    rows = similar.new_empty(2, len(similar))
    kernels.contrast_rows[(len(similar),)](
        similar, classes.contiguous(), queue_classes.contiguous(), rows, len(classes), len(queue_classes),
        RELEASED=released, **_block(similar.shape[1]),
    )  # fmt: skip
    return rows


class Unit(torch.autograd.Function):
    """Rows of length 1, as `F.normalize(x, dim=1)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from pluralis.losses import fused_kernels as kernels

        x = x.contiguous()
        out, norms = torch.empty_like(x), x.new_empty(len(x))
        if len(x):
            kernels.unit_rows[(len(x),)](x, out, norms, x.shape[1], _EPS, **_block(x.shape[1]))
        ctx.save_for_backward(out, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        from pluralis.losses import fused_kernels as kernels

        out, norms = ctx.saved_tensors
        grad, slope = grad.contiguous(), torch.empty_like(out)
        if len(out):
            kernels.unit_gradient[(len(out),)](out, norms, grad, slope, out.shape[1], _EPS, **_block(out.shape[1]))
        return slope


_EPS = 1e-12  # as in `F.normalize`


def _numbers(y: Tensor) -> Tensor:
    return y.to(torch.int8) if y.dtype == torch.bool else y


def _block(columns: int) -> dict[str, int]:
    """How many columns a program takes at a time, and the warps that share them."""
    block = min(1024, max(64, _power_of_two(columns)))
    return {"BLOCK": block, "num_warps": 8 if block == 1024 else 4}


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 1 else 1
