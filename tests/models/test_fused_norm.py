"""Batch norm with ReLU6: as the two layers one after the other, fused on a GPU or not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluralis.models.fused_norm import Norm, fusible

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernels need a GPU")


def reference(norm: Norm, x: Tensor, slope: Tensor, relu6: bool) -> list[Tensor]:
    """Output, gradients and running statistics in float64, from the plain layers."""
    plain = nn.BatchNorm2d(x.shape[1], norm.eps, norm.momentum).to(x.device).double()
    plain.load_state_dict({k: v.double() for k, v in norm.state_dict().items()})
    plain.num_batches_tracked = plain.num_batches_tracked.long()
    x = x.double().detach().requires_grad_()
    out = plain(x)
    out = F.relu6(out) if relu6 else out
    found = torch.autograd.grad(out, [x, plain.weight, plain.bias], slope.double())
    return [out, *found, plain.running_mean, plain.running_var, plain.num_batches_tracked]  # type: ignore[list-item]


def check(shape: tuple[int, ...], relu6: bool, device: str, dtype: torch.dtype, tolerance: float) -> bool:
    torch.manual_seed(0)
    norm = Norm(shape[1], 1e-3, 0.01, relu6).to(device)
    with torch.no_grad():
        norm.weight.normal_(1, 0.5)
        norm.bias.normal_(1, 2)
    x = (3 * torch.randn(shape, device=device) + 7).to(dtype).contiguous(memory_format=torch.channels_last)
    slope = torch.randn(shape, device=device).to(dtype)
    expected = reference(norm, x, slope, relu6)
    x.requires_grad_()
    out = norm(x)
    assert out.dtype == dtype
    found = torch.autograd.grad(out, [x, norm.weight, norm.bias], slope)
    state = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    for got, want in zip([out.detach(), *found, *state], [e.detach() for e in expected], strict=True):
        assert got is not None
        scale = float(want.abs().max()) or 1.0
        assert float((got.double() - want).abs().max()) <= tolerance * scale
    return fusible(x)


@pytest.mark.parametrize("relu6", [True, False])
def test_on_the_cpu(relu6: bool) -> None:
    assert not check((3, 24, 5, 5), relu6, "cpu", torch.float32, 1e-5)


@needs_gpu
@pytest.mark.parametrize("shape", [(3, 24, 5, 5), (2, 144, 4, 4), (4, 8, 33, 33), (2, 1280, 1, 1), (8, 96, 64, 64)])
@pytest.mark.parametrize("relu6", [True, False])
def test_fused_in_float32(shape: tuple[int, ...], relu6: bool) -> None:
    assert check(shape, relu6, "cuda", torch.float32, 3e-5)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_in_half_precision(dtype: torch.dtype) -> None:
    assert check((8, 40, 16, 16), False, "cuda", dtype, 1e-2)


@needs_gpu
@pytest.mark.parametrize("shape", [(3, 24, 5, 5), (2, 1280, 1, 1), (8, 96, 64, 64)])
@pytest.mark.parametrize("relu6", [True, False])
def test_fused_in_evaluation_mode(shape: tuple[int, ...], relu6: bool) -> None:
    torch.manual_seed(0)
    norm = Norm(shape[1], 1e-3, 0.01, relu6).cuda().eval()
    with torch.no_grad():
        for values in norm.weight, norm.bias, norm.running_mean:
            assert values is not None
            values.normal_(1, 2)
        assert norm.running_var is not None
        norm.running_var.uniform_(0.5, 2)
        x = torch.randn(shape, device="cuda").contiguous(memory_format=torch.channels_last)
        found = norm(x)
    wanted = norm(x)  # with a gradient, by the plain layers
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-5)


@needs_gpu
def test_values_that_are_not_numbers_stay_so() -> None:
    norm = Norm(8, 1e-3, 0.01, True).cuda()
    x = torch.randn(2, 8, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last)
    x[0, 3, 1, 1] = torch.nan
    out = norm(x)
    assert out[:, 3].isnan().all()
    assert out[:, :3].isfinite().all()


def test_evaluation_and_frozen_statistics_use_the_running_ones() -> None:
    norm = Norm(4, 1e-3, 0.01, True).eval()
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(norm(x), F.relu6(x / (1 + 1e-3) ** 0.5))
