"""Batch norm and ReLU6 in one: on a GPU with Triton, passes read and write each map less often."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pluralis.triton_there import has_triton


class Norm(nn.BatchNorm2d):
    """Batch norm, followed by ReLU6 where `relu6`; state-dict keys and numbers are those of `nn.BatchNorm2d`."""

    def __init__(self, channels: int, eps: float, momentum: float, relu6: bool) -> None:
        super().__init__(channels, eps, momentum)
        self.relu6 = relu6

    def forward(self, input: Tensor) -> Tensor:
        if fusible(input):
            if self.training:
                fused: Tensor = _Fused.apply(input, self.weight, self.bias, self)
                return fused
            kept: Tensor = _Kept.apply(input, self.weight, self.bias, self)
            return kept
        out = super().forward(input)
        return F.relu6(out, inplace=True) if self.relu6 else out


def fusible(x: Tensor) -> bool:
    """A map on a GPU in channels-last order, and Triton is there."""
    return x.is_cuda and x.is_contiguous(memory_format=torch.channels_last) and has_triton()


_PROGRAMS = 1056
"""Of a reduction: eight for each multiprocessor of a large GPU."""
_FINISH = {"BP": 256, "BC": 16}
"""Tile in which the partial sums are added up: few channels, so that many programs share the work."""


class _Fused(torch.autograd.Function):
    """Two passes forward (statistics; values) and two backward (sums; gradient), all sums in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, norm: Norm) -> Tensor:
        from pluralis.models import fused_norm_kernels as kernels

        channels, rows = x.shape[1], x.numel() // x.shape[1]
        sums, grid, each, blocks = _split(x, rows, channels)
        saved = torch.empty(4, channels, device=x.device)
        kernels.column_moments[grid](x, sums, rows, channels, each, **blocks)
        kernels.finish_moments[_finish(channels)](
            x, sums, gamma, beta, norm.running_mean, norm.running_var, norm.num_batches_tracked, saved,
            rows, channels, grid[0], norm.eps, norm.momentum, **_FINISH,
        )  # fmt: skip
        out = torch.empty_like(x)
        kernels.apply_norm[_tiles(rows, channels, blocks)](x, out, saved, rows, channels, ACT=norm.relu6, **blocks)
        ctx.save_for_backward(x, saved)
        ctx.relu6 = norm.relu6
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from pluralis.models import fused_norm_kernels as kernels

        x, saved = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        channels, rows = x.shape[1], x.numel() // x.shape[1]
        sums, grid, each, blocks = _split(x, rows, channels)
        slope = torch.empty(2, channels, device=x.device)
        dgamma, dbeta = torch.empty(2, channels, device=x.device)
        kernels.gradient_sums[grid](x, grad, saved, sums, rows, channels, each, ACT=ctx.relu6, **blocks)
        kernels.finish_gradient[_finish(channels)](
            sums, saved, slope, dgamma, dbeta, rows, channels, grid[0], **_FINISH
        )
        dx = torch.empty_like(x)
        tiles = _tiles(rows, channels, blocks)
        kernels.input_gradient[tiles](x, grad, dx, saved, slope, rows, channels, ACT=ctx.relu6, **blocks)
        return dx, dgamma, dbeta, None


class _Kept(torch.autograd.Function):
    """By the running statistics, which stay: one pass forward and one backward, all sums in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, norm: Norm) -> Tensor:
        from pluralis.models import fused_norm_kernels as kernels

        assert norm.running_mean is not None
        assert norm.running_var is not None
        channels, rows = x.shape[1], x.numel() // x.shape[1]
        blocks = _blocks(channels)
        out = torch.empty_like(x)
        kernels.apply_running[_tiles(rows, channels, blocks)](
            x, out, gamma, beta, norm.running_mean, norm.running_var, rows, channels, norm.eps, ACT=norm.relu6, **blocks
        )
        ctx.save_for_backward(x, gamma, beta, norm.running_mean, norm.running_var)
        ctx.eps, ctx.relu6 = norm.eps, norm.relu6
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from pluralis.models import fused_norm_kernels as kernels

        x, *state = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        channels, rows = x.shape[1], x.numel() // x.shape[1]
        sums, grid, each, blocks = _split(x, rows, channels)
        dx = torch.empty_like(x)
        kernels.kept_gradient[grid](x, grad, dx, *state, sums, rows, channels, each, ctx.eps, ACT=ctx.relu6, **blocks)
        dbeta, dgamma = sums.sum(1)
        return dx, dgamma, dbeta, None


def _split(x: Tensor, rows: int, channels: int) -> tuple[Tensor, tuple[int, int], int, dict[str, int]]:
    """Room for partial sums [2, parts, C], the grid (parts, channel blocks), rows of each part, and block sides."""
    blocks = _blocks(channels)
    across = -(-channels // blocks["BC"])
    parts = max(1, min(-(-rows // blocks["BM"]), _PROGRAMS // across))
    each = -(-rows // parts)
    parts = -(-rows // each)
    return torch.empty(2, parts, channels, device=x.device), (parts, across), each, blocks


def _blocks(channels: int) -> dict[str, int]:
    wide = min(64, 1 << (channels - 1).bit_length())
    return {"BM": 2048 // wide, "BC": wide}


def _tiles(rows: int, channels: int, blocks: dict[str, int]) -> tuple[int, int]:
    return -(-rows // blocks["BM"]), -(-channels // blocks["BC"])


def _finish(channels: int) -> tuple[int]:
    return (-(-channels // _FINISH["BC"]),)
