"""The losses that are one kernel on a GPU, against the same in PyTorch and float64.

They run on a GPU, or with TRITON_INTERPRET=1 where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses import contrast, csl, functional, fused, quadrature, selection_one
from pluralis.losses.contrast import label_contrast, unit
from pluralis.losses.selection import selection

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if GPU else "cpu"
needs_triton = pytest.mark.skipif(not (GPU or INTERPRETED), reason="the fused kernels need a GPU")
needs_gpu = pytest.mark.skipif(not GPU, reason="the fused kernels need a GPU")

SHAPES = [(7, 1), (7, 2), (16, 20), (64, 80), (5, 1000), (3, 10_000)]
CONTRASTS = [(12, 30, 4), (5, 0, 2), (1, 9, 3), (20, 3, 20), (8, 8, 1), (1, 0, 1), (64, 2000, 80)]


def batch(rows: int, classes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Rows of all kinds: one written label, several, none, none but verified absent ones, and all known."""
    g = torch.Generator().manual_seed(classes)
    z = torch.randn(rows, classes, generator=g) * torch.linspace(0.3, 5, rows)[:, None]
    z[1::2] -= 3
    y = torch.zeros(rows, classes, dtype=torch.int8)
    y[torch.arange(rows), torch.randint(classes, (rows,), generator=g)] = 1
    y[1] = torch.randint(-1, 2, (classes,), generator=g)
    y[1, 0] = 1
    y[2] = 0
    if rows > 3:
        y[3] = torch.randint(-1, 1, (classes,), generator=g)
        y[4] = torch.randint(0, 2, (classes,), generator=g) * 2 - 1
    return z.to(dtype).to(DEVICE), y.to(DEVICE)


def one(z: Tensor, y: Tensor, a: float, absent: bool, slope: bool = True) -> tuple[Tensor, Tensor | None]:
    return fused.one_rows(z, y, selection_one._nodes(z, a), a, absent, slope)


@needs_triton
@pytest.mark.parametrize(("a", "absent"), [(1.0, False), (3.0, False), (0.4, True)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selection_has_the_value_and_gradient_of_float64(shape: tuple[int, int], a: float, absent: bool) -> None:
    z, y = batch(*shape)
    exact, exact_slope, _ = selection_one.one_likelihood(a, absent)(z.double(), y, True)
    loss, slope = one(z, y, a, absent)
    assert slope is not None
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=3e-6, atol=2e-7)


@needs_triton
@pytest.mark.parametrize("absent", [False, True])
def test_selection_without_a_gradient(absent: bool) -> None:
    z, y = batch(64, 80)
    loss, slope = one(z, y, 1.0, absent, slope=False)
    assert slope is None
    assert torch.equal(loss, one(z, y, 1.0, absent)[0])


@needs_triton
def test_selection_keeps_its_digits_far_out() -> None:
    """Single entries, so that no error hides in a sum: a written, an absent, and a doubtful one beside a sure one."""
    z = torch.linspace(-80, 80, 161, device=DEVICE)
    for sign in (1, -1):
        loss, slope = one(z[:, None], torch.full((161, 1), sign, device=DEVICE), 1.0, False)
        torch.testing.assert_close(loss, F.softplus(-sign * z.double(), threshold=100), rtol=1e-6, atol=0)
        assert slope is not None
        exact = -sign * (-sign * z.double()).sigmoid()
        torch.testing.assert_close(slope[:, 0].double(), exact, rtol=1e-6, atol=0)
    pair = torch.stack([torch.full_like(z, 200.0), z.clamp(max=14)], 1)
    loss, _ = one(pair, torch.tensor([[1, 0]], device=DEVICE).expand(161, 2), 1.0, False)
    torch.testing.assert_close(loss, -torch.log1p(-pair[:, 1].double().sigmoid() / 2), rtol=1e-6, atol=1e-15)


@needs_triton
def test_selection_of_certain_labels_and_their_extremes() -> None:
    z = torch.tensor([[1e4, -1e4, 0.0, 1e4, -1e4, 1e4, -1e4]], device=DEVICE)
    y = torch.tensor([[1, 1, 0, 0, 0, -1, -1]], device=DEVICE)
    loss, slope = one(z, y, 1.0, False)
    exact, exact_slope, _ = selection_one.one_likelihood(1.0, False)(z.double(), y, True)
    assert slope is not None
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=3e-6, atol=1e-7)
    assert (slope[0, 1], slope[0, 5]) == (-1, 1)
    sure = torch.full((1, 3000), 30.0, device=DEVICE)  # all of them are there
    loss, _ = one(sure, torch.eye(1, 3000, device=DEVICE), 1.0, False)
    assert loss.exp().item() == pytest.approx(3000, rel=1e-5)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.float32])
def test_selection_of_labels_of_any_dtype_and_order(dtype: torch.dtype) -> None:
    z, y = batch(9, 33)
    y = (y > 0).to(dtype)
    expected = one(z, y.to(torch.int8), 1.0, False)
    found = one(z.T.contiguous().T, y.T.contiguous().T, 1.0, False)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)  # type: ignore[arg-type]


@needs_triton
def test_what_is_not_a_number_stays_in_its_row() -> None:
    z, y = batch(6, 5)
    z[[2, 4, 5], [0, 1, 2]] = torch.nan
    loss, slope = one(z, y, 1.0, False)
    assert slope is not None
    assert loss.isnan().tolist() == [False, False, True, False, True, True]
    assert slope.isnan().any(1).tolist() == loss.isnan().tolist()
    assert one(z[:0], y[:0], 1.0, False)[0].shape == (0,)


@pytest.mark.parametrize("a", [1.0, 0.3])
def test_the_rules_are_chosen_as_in_pytorch(a: float) -> None:
    """The same table, entered at ⌊10 log(1+κ) + 1/2⌋."""
    kappa = torch.cat([torch.zeros(1), torch.logspace(-6, 8, 999)]).double()
    step = (10 * kappa.log1p() + 0.5).floor().clamp(max=quadrature.GRID - 1).long()
    chosen = quadrature.rule_table(6, a, kappa.device)[step].unbind(1)
    for found, expected in zip(chosen, quadrature.gauss_rules(kappa, 6, a), strict=True):
        assert torch.equal(found, expected)


@needs_triton
@pytest.mark.parametrize("gammas", [(0.0, 1.0, 2.0), (1.0, 0.5, 1.5), (0.0, 0.0, 4.0)])
def test_csl_has_the_value_and_gradient_of_float64(gammas: tuple[float, float, float]) -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.cat([torch.randn(3000, generator=g) * 5, torch.tensor([1e4, -1e4, 0.0] * 4)]).to(DEVICE)
    code = torch.randint(-1, 3, z.shape, generator=g, dtype=torch.int8)
    code[-12:] = torch.tensor([-1, 0, 1, 2]).repeat_interleave(3)
    code = code.to(DEVICE)
    exact, exact_slope = csl._selective(z.double(), code, True, gammas)
    loss, slope = fused.selective(z, code, gammas, True)
    assert exact_slope is not None
    assert slope is not None
    torch.testing.assert_close(loss.double(), exact, rtol=3e-6, atol=1e-30)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=3e-6, atol=1e-30)
    alone, nothing = fused.selective(z, code, gammas, False)
    assert nothing is None
    assert torch.equal(alone, loss)


def embeddings(a: int, k: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(a)
    z = F.normalize(torch.randn(a + k, 16, generator=g), dim=1).to(DEVICE)
    kinds = torch.randint(-1, classes, (a + k,), generator=g).to(DEVICE)
    return z[:a], kinds[:a], z[a:], kinds[a:]


@needs_triton
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("tau", [0.5, 0.01])
@pytest.mark.parametrize("sizes", CONTRASTS, ids=str)
def test_contrast_has_the_value_and_gradient_of_float64(
    sizes: tuple[int, int, int], tau: float, released: bool
) -> None:
    z, classes, queue, kinds = embeddings(*sizes)
    similar = z @ torch.cat([z, queue]).T / tau
    value, slope = contrast._plain(similar.double(), classes, kinds, released)
    found, found_slope = contrast._fused(similar, classes, kinds, released)
    torch.testing.assert_close(found.double(), value, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(found_slope.double(), slope, rtol=2e-5, atol=1e-7)


@needs_triton
def test_contrast_of_what_is_not_a_number_is_none() -> None:
    similar = torch.zeros(3, 3, device=DEVICE)
    similar[0, 2] = torch.nan
    classes = torch.tensor([0, 0, 1], device=DEVICE)
    for released in (False, True):
        assert contrast._fused(similar.clone(), classes, classes[:0], released)[0].isnan()


@needs_triton
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 128), (3, 2500)], ids=str)
def test_rows_of_length_one(shape: tuple[int, int]) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g).to(DEVICE)
    x[-1] = 0.0 if len(x) > 3 else 1e-14  # shorter than what is stretched to 1
    wide, x = x.double().requires_grad_(), x.requires_grad_()
    slope = torch.randn(shape, generator=g).to(DEVICE)
    out, exact = fused.Unit.apply(x), F.normalize(wide, dim=1)
    torch.testing.assert_close(out.double(), exact, rtol=1e-6, atol=1e-7)
    (found,), (wanted,) = torch.autograd.grad(out, x, slope), torch.autograd.grad(exact, wide, slope.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_nothing_is_fused_on_the_cpu_or_in_float64() -> None:
    assert not fused.fusible(torch.zeros(2, 3))
    if GPU:
        assert fused.fusible(torch.zeros(2, 3, device="cuda"))
        assert not fused.fusible(torch.zeros(2, 3, device="cuda", dtype=torch.float64))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["selection", "csl"])
def test_losses_on_the_gpu_are_those_of_the_cpu(name: str, reduction: str, dtype: torch.dtype) -> None:
    z, y = batch(64, 80, dtype)
    loss = {"selection": selection, "csl": functional.csl}[name]
    if name == "csl":
        unknown = (y == 0).flatten()
        z.view(-1)[unknown & (unknown.cumsum(0) <= 5 * 64)] += 60  # which are the likely ones is then not left to ties
    values, slopes = [], []
    for device in ("cuda", "cpu"):
        x = z.detach().to(device).requires_grad_()
        found = loss(x, y.to(device), reduction=reduction)
        found.sum().backward()
        assert x.grad is not None
        values.append(found.detach().cpu())
        slopes.append(x.grad.cpu().float())
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*slopes, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_contrast_on_the_gpu_is_that_of_the_cpu(variant: str) -> None:
    z, classes, queue, kinds = embeddings(64, 500, 20)
    values, slopes = [], []
    for device in ("cuda", "cpu"):
        x = (3 * z).to(device).requires_grad_()
        found = label_contrast(unit(x), *(t.to(device) for t in (classes, queue, kinds)), variant=variant)
        found.backward()
        assert x.grad is not None
        values.append(found.detach().cpu())
        slopes.append(x.grad.cpu())
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)


@needs_gpu
def test_float64_and_other_tensors_take_the_way_of_pytorch() -> None:
    z, y = batch(16, 20)
    wide = selection(z.double(), y)
    torch.testing.assert_close(selection(z, y).double(), wide, rtol=1e-6, atol=0)
    assert wide.dtype == torch.float64
