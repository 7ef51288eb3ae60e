"""Batch norm with ReLU6: as the two layers one after the other, fused or not.

Fused kernels run on a GPU, or with TRITON_INTERPRET=1 where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluralis.models import fused_norm
from pluralis.models.fused_norm import Norm, fusible

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
needs_gpu = pytest.mark.skipif(not GPU, reason="the fused kernels need a GPU")
needs_triton = pytest.mark.skipif(not (GPU or INTERPRETED), reason="the fused kernels need a GPU")
SHAPES = [(3, 24, 5, 5), (2, 144, 4, 4), (4, 8, 33, 33), (2, 1280, 1, 1)]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the fused kernels."""
    if not GPU:
        monkeypatch.setattr(fused_norm, "fusible", lambda x: True)
    return "cuda" if GPU else "cpu"


def reference(norm: Norm, x: Tensor, slope: Tensor, relu6: bool) -> list[Tensor]:
    """Output, gradients and running statistics in float64, from the plain layers."""
    plain = nn.BatchNorm2d(x.shape[1], norm.eps, norm.momentum).to(x.device).double()
    plain.load_state_dict({k: v.double() for k, v in norm.state_dict().items()})
    plain.num_batches_tracked = plain.num_batches_tracked.long()
    plain.train(norm.training)
    x = x.double().detach().requires_grad_()
    out = plain(x)
    out = F.relu6(out) if relu6 else out
    found = torch.autograd.grad(out, [x, plain.weight, plain.bias], slope.double())
    return [out, *found, plain.running_mean, plain.running_var, plain.num_batches_tracked]  # type: ignore[list-item]


def check(
    shape: tuple[int, ...], relu6: bool, device: str, dtype: torch.dtype, tolerance: float, kept: bool = False
) -> bool:
    torch.manual_seed(0)
    norm = Norm(shape[1], 1e-3, 0.01, relu6).to(device).train(not kept)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.weight.normal_(1, 0.5)
        norm.bias.normal_(1, 2)
    x = (3 * torch.randn(shape, device=device) + 7).to(dtype).contiguous(memory_format=torch.channels_last)
    slope = torch.randn(shape, device=device).to(dtype)
    norm.running_mean.normal_(6, 1)
    norm.running_var.uniform_(4, 12)
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


@pytest.mark.parametrize("relu6", [True, False])
def test_kept_statistics_on_the_cpu(relu6: bool) -> None:
    assert not check((3, 24, 5, 5), relu6, "cpu", torch.float32, 1e-5, kept=True)


@needs_triton
@pytest.mark.parametrize("kept", [False, True], ids=["learned", "kept"])
@pytest.mark.parametrize("relu6", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, *([(8, 96, 64, 64)] if GPU else [])])
def test_fused_in_float32(shape: tuple[int, ...], relu6: bool, kept: bool, device: str) -> None:
    assert check(shape, relu6, device, torch.float32, 3e-5, kept) == GPU


@needs_triton
@pytest.mark.parametrize("kept", [False, True], ids=["learned", "kept"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_in_half_precision(dtype: torch.dtype, kept: bool, device: str) -> None:
    assert check((8, 40, 16, 16), False, device, dtype, 1e-2, kept) == GPU


@needs_triton
def test_fused_without_a_gradient(device: str) -> None:
    norm, x = Norm(24, 1e-3, 0.01, True).to(device).eval(), torch.randn(3, 24, 5, 5, device=device)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        found = norm(x)
    torch.testing.assert_close(found, F.relu6(x / (1 + 1e-3) ** 0.5), rtol=1e-5, atol=1e-5)


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
