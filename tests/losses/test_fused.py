"""The losses that are one kernel on a GPU, against the same in PyTorch and float64.

They run on a GPU, or with TRITON_INTERPRET=1 where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import os
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses import contrast, csl, functional, fused, quadrature, selection_one, selection_rate
from pluralis.losses.contrast import label_contrast
from pluralis.losses.pointwise import pointwise
from pluralis.losses.selection import selection
from tests.losses.passes import Passes

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if GPU else "cpu"
needs_triton = pytest.mark.skipif(not (GPU or INTERPRETED), reason="the fused kernels need a GPU")
needs_gpu = pytest.mark.skipif(not GPU, reason="the fused kernels need a GPU")

SHAPES = [(7, 1), (7, 2), (16, 20), (64, 80), (5, 1000), (3, 10_000)]
FORMS = ["paper", "without twins", "released"]
SCALES = {"paper": 0.25, "without twins": 0.25, "released": None}
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
    return fused.one_rows(z, y, selection_one.MOST_NODES, a, absent, slope)


@needs_triton
@pytest.mark.parametrize(("a", "absent"), [(1.0, False), (3.0, True), (0.4, True)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selection_has_the_value_and_gradient_of_float64(shape: tuple[int, int], a: float, absent: bool) -> None:
    z, y = batch(*shape)
    exact, exact_slope, _ = selection_one.one_likelihood(a, absent)(z.double(), y, True)
    loss, slope = one(z, y, a, absent)
    assert slope is not None
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-6, atol=1e-30)


@needs_triton
def test_selection_of_any_number_of_written_labels() -> None:
    """Up to all of 60, in rows from nearly empty to nearly certain; more than 32 count as 32."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(61, 60, generator=g) * 3 + torch.linspace(-4, 8, 61)[:, None]
    y = (torch.arange(60) < torch.arange(61)[:, None]).to(torch.int8)
    z, y = z.to(DEVICE), y.to(DEVICE)
    exact, exact_slope, _ = selection_one.one_likelihood(1.0, False)(z.double(), y, True)
    loss, slope = one(z, y, 1.0, False)
    assert slope is not None
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-11)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-6, atol=1e-30)
    torch.testing.assert_close(one(z[1:2], y[1:2], 1.0, False)[0], loss[1:2], rtol=1e-6, atol=0)


@needs_triton
def test_a_row_with_more_labels_than_were_announced_is_none_of_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `start` has seen single labels alone: a CPU, which looks, must not have another loss than a GPU."""
    monkeypatch.setattr(selection_one, "fusible", lambda z: z.dtype == torch.float32)
    z, y = batch(16, 20)
    found = selection(z, y, several=False, reduction="none")
    exact = selection(z.double(), y, several=True, reduction="none")
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-12)
    assert not torch.allclose(exact, selection(z.double(), y, several=False, reduction="none"), rtol=1e-3)


@needs_triton
def test_the_derivative_of_nearly_certain_labels_keeps_its_digits() -> None:
    """Few of them among many, where a rule with fewer nodes gives five digits."""
    z = torch.full((39, 10_000), -30.0, device=DEVICE)
    for row in range(39):
        z[row, : row + 2] = 30.0
    y = torch.zeros(z.shape, dtype=torch.int8, device=DEVICE)
    y[:, 0] = 1
    exact, exact_slope, _ = selection_one.one_likelihood(1.0, False)(z.double(), y, True)
    loss, slope = one(z, y, 1.0, False)
    assert slope is not None
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-6, atol=0)


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


@needs_triton
@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0, "one", "scalar", "each"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selection_at_a_rate_has_the_value_and_gradient_of_float64(
    shape: tuple[int, int], rate: float | str, absent: bool
) -> None:
    z, y = batch(*shape)
    z[0, 0], z[-1, -1] = 1e4, -1e4
    each = torch.linspace(0, 1, shape[1], device=DEVICE).double()
    tensors = {"each": each, "one": torch.full((1,), 0.4, device=DEVICE), "scalar": torch.tensor(0.4)}
    logs = selection_rate._logs(tensors[rate] if isinstance(rate, str) else rate)
    exact, exact_slope, _ = selection_rate._likelihood(*logs, absent, learned=False)(z.double(), y, True)
    loss, slope = fused.rate_rows(z, y, *logs, absent, True)
    assert slope is not None
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=3e-6, atol=2e-7)
    alone, nothing = fused.rate_rows(z, y, *logs, absent, False)
    assert nothing is None
    assert torch.equal(alone, loss)
    z[1:3] = torch.nan  # of these the second has no written label
    loss, slope = fused.rate_rows(z, y, *logs, absent, True)
    assert loss.isnan().tolist() == [row in (1, 2) for row in range(len(z))]


@pytest.mark.parametrize("a", [1.0, 0.3])
def test_the_rules_are_chosen_as_in_pytorch(a: float) -> None:
    """The same table, entered at ⌊10 log(1+κ) + 1/2⌋."""
    kappa = torch.cat([torch.zeros(1), torch.logspace(-6, 8, 999)]).double()
    step = (10 * kappa.log1p() + 0.5).floor().clamp(max=quadrature.GRID - 1).long()
    minus_s, w, v = quadrature.gauss_rules(kappa, 6, a)
    chosen = quadrature.rule_table(6, a, kappa.device, False)[1][step].unbind(1)
    for found, expected in zip(chosen, (minus_s, w, v), strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(v, (1 + minus_s) / -minus_s, rtol=1e-15, atol=0)


@needs_triton
@pytest.mark.parametrize("gammas", [(0.0, 1.0, 2.0), (1.0, 0.5, 1.5), (0.0, 0.0, 4.0)])
def test_csl_has_the_value_and_gradient_of_float64(gammas: tuple[float, float, float]) -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.cat([torch.randn(3000, generator=g) * 5, torch.tensor([1e4, -1e4, 0.0] * 4)])[None].to(DEVICE)
    code = torch.randint(-1, 3, z.shape, generator=g, dtype=torch.int8)
    code[0, -12:] = torch.tensor([-1, 0, 1, 2]).repeat_interleave(3)
    code = code.to(DEVICE)
    labels = torch.where(code == 2, 0, -code)
    among = torch.where(code == 0, torch.inf, z)
    exact, exact_slope = csl._selective(z.double(), code, True, gammas)
    loss, slope = fused.selective(z, labels, True, among, None, gammas)
    assert exact_slope is not None
    assert slope is not None
    torch.testing.assert_close(loss.double(), exact, rtol=3e-6, atol=1e-30)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=3e-6, atol=1e-30)
    alone, nothing = fused.selective(z, labels, False, among, None, gammas)
    assert nothing is None
    assert torch.equal(alone, loss)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32])
@pytest.mark.parametrize("common", ["none", "one", "some", "all"])
@pytest.mark.parametrize(("rows", "likely"), [(50, 0), (50, 5), (3, 33)])
def test_csl_leaves_out_what_the_plain_way_does(rows: int, likely: int, common: str, dtype: torch.dtype) -> None:
    z, y = batch(rows, 33)  # 50 rows are two programs, of which the second begins inside a row
    y = (y > 0) if dtype == torch.bool else y.to(dtype)
    which = {"none": None, "one": torch.tensor([True]), "some": torch.arange(33) % 3 == 1, "all": torch.ones(33) > 0}
    there = which[common]
    there = None if there is None else there.to(DEVICE)
    plain = functional.csl(z.double().cpu(), y.cpu(), likely=likely, common=None if there is None else there.cpu())
    among = csl.marked(z, y, likely * rows) if likely else None
    kernel = partial(fused.selective, among=among, common=there, gammas=(0.0, 1.0, 2.0))
    assert pointwise(kernel, z, y).item() == pytest.approx(plain.item(), rel=3e-6)
    turned = z.T.contiguous().T, y.T.contiguous().T
    kernel = partial(kernel, among=csl.marked(*turned, likely * rows) if likely else None)
    assert pointwise(kernel, *turned).item() == pytest.approx(plain.item(), rel=3e-6)


@needs_triton
def test_csl_of_what_is_not_finite_is_none() -> None:
    """Also where it is left out, so that training stops instead of going on without it."""
    for value in (torch.nan, torch.inf):
        z, y = torch.tensor([[value, 0.0, 1.0]], device=DEVICE), torch.tensor([[0, 1, 0]], device=DEVICE)
        loss, _ = fused.selective(z, y, True, csl.marked(z, y, 1), None, (0.0, 1.0, 2.0))
        assert loss.isnan().tolist() == [[True, False, False]]


def embeddings(a: int, k: int, classes: int, dim: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(a)
    z = F.normalize(torch.randn(a + k, dim, generator=g), dim=1).to(DEVICE)
    kinds = torch.randint(-1, classes, (a + k,), generator=g).to(DEVICE)
    return z[:a], kinds[:a], z[a:], kinds[a:]


@needs_triton
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tau", [0.5, 0.01])
@pytest.mark.parametrize("sizes", CONTRASTS, ids=str)
def test_contrast_has_the_value_and_gradient_of_float64(sizes: tuple[int, int, int], tau: float, form: str) -> None:
    z, classes, queue, kinds = embeddings(*sizes)
    similar, twins = z @ torch.cat([z, queue]).T / tau, form == "paper"
    if twins:
        similar.diagonal().copy_(torch.linspace(-1, 1, len(z)) / tau)
    value, slope = contrast._plain(similar.double(), classes, kinds, SCALES[form], twins)
    found, found_slope = contrast._fused(similar, classes, kinds, SCALES[form], twins)
    torch.testing.assert_close(found.double(), value, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(found_slope.double(), slope, rtol=2e-5, atol=1e-7)


@needs_triton
def test_contrast_of_what_is_not_a_number_is_none() -> None:
    similar = torch.zeros(3, 3, device=DEVICE)
    similar[0, 2] = torch.nan
    classes = torch.tensor([0, 0, 1], device=DEVICE)
    for form, scale in SCALES.items():
        assert contrast._fused(similar.clone(), classes, classes[:0], scale, form == "paper")[0].isnan()
    own = torch.zeros(3, 3, device=DEVICE).fill_diagonal_(torch.nan)
    assert contrast._fused(own.clone(), classes, classes[:0], 0.5, True)[0].isnan()
    assert not contrast._fused(own.clone(), classes, classes[:0], 0.5, False)[0].isnan()


def raw(sizes: tuple[int, int, int], dim: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Anchors of all lengths, 0 and nearly 0 too, and twins."""
    g = torch.Generator().manual_seed(dim)
    z, classes, queue, kinds = embeddings(*sizes, dim)
    x = z * torch.rand(len(z), 1, generator=g).mul(9).to(DEVICE)
    twins = torch.randn(x.shape, generator=g).to(DEVICE)
    if len(x) > 4:
        x[1], x[3] = 0.0, 1e-14
        twins[2], twins[3], twins[4] = 0.0, 1e-14, 1e-14
    return x, twins, classes, queue, kinds


@needs_triton
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tau", [0.5, 0.01])
@pytest.mark.parametrize("sizes", CONTRASTS, ids=str)
def test_contrast_of_embeddings_has_the_value_and_gradient_of_float64(
    sizes: tuple[int, int, int], tau: float, form: str
) -> None:
    check_contrast(*raw(sizes), tau, form)


@needs_triton
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [1, 7, 100, 128, 1024])
def test_contrast_of_embeddings_of_any_width(dim: int, form: str) -> None:
    check_contrast(*raw((8, 30, 3), dim), 0.5, form)


def check_contrast(
    x: Tensor, twins: Tensor, classes: Tensor, queue: Tensor, kinds: Tensor, tau: float, form: str
) -> None:
    """A similarity has float32's digits of 1/τ; a slope is measured by the largest, less the lengths of the rows."""
    given, scale = (x.clone(), twins.clone(), queue.clone()), SCALES[form]
    wide, single = (twins.double(), twins) if form == "paper" else (None, None)
    value, slope = contrast.by_matrices(x.double(), wide, classes, queue.double(), kinds, tau, scale)
    found, found_slope = fused.unit_contrast(x, single, classes, queue, kinds, tau, scale)
    torch.testing.assert_close(found.double(), value, rtol=2e-6, atol=1e-6)
    length = torch.cat([x, twins])[: len(slope)].double().norm(dim=1, keepdim=True).clamp(min=1e-12)
    most = (slope * length).abs().max().item()
    torch.testing.assert_close(found_slope * length, slope * length, rtol=0, atol=1e-6 / tau * most)
    assert len(slope) == (2 * len(x) if form == "paper" else len(x))
    assert all(torch.equal(a, b) for a, b in zip((x, twins, queue), given, strict=True))


@needs_triton
def test_contrast_of_embeddings_in_any_order_of_memory() -> None:
    x, twins, classes, queue, kinds = raw((9, 14, 3))
    wanted = fused.unit_contrast(x, twins, classes, queue, kinds, 0.5, 0.25)
    x, twins, queue = (t.T.contiguous().T for t in (x, twins, queue))
    classes, kinds = classes.repeat_interleave(2)[::2], kinds.flip(0).flip(0)
    for found, expected in zip(fused.unit_contrast(x, twins, classes, queue, kinds, 0.5, 0.25), wanted, strict=True):
        assert torch.equal(found, expected)


@needs_triton
@pytest.mark.parametrize("form", FORMS)
def test_contrast_of_an_embedding_that_is_not_a_number_is_none(form: str) -> None:
    classes, unit = torch.tensor([0, 0, 1], device=DEVICE), torch.eye(3, device=DEVICE)
    twins = unit if form == "paper" else None
    for place in range(3):
        x = torch.eye(3, device=DEVICE)
        x[place, 0] = torch.nan
        assert fused.unit_contrast(x, twins, classes, x[:0], classes[:0], 0.5, SCALES[form])[0].isnan()
        assert fused.unit_contrast(unit, twins, classes, x, classes, 0.5, SCALES[form])[0].isnan()
        assert fused.unit_contrast(unit, x, classes, x[:0], classes[:0], 0.5, 0.25)[0].isnan()


def test_nothing_is_fused_on_the_cpu_or_in_float64() -> None:
    assert not fused.fusible(torch.zeros(2, 3))
    if GPU:
        assert fused.fusible(torch.zeros(2, 3, device="cuda"))
        assert fused.fusible(torch.zeros(2, 3, device="cuda", dtype=torch.bfloat16))
        assert not fused.fusible(torch.zeros(2, 3, device="cuda", dtype=torch.float64))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["selection", "selection at a rate", "csl"])
def test_losses_on_the_gpu_are_those_of_the_cpu(name: str, reduction: str, dtype: torch.dtype) -> None:
    z, y = batch(64, 80, dtype)
    at_rate = partial(selection, mechanism="rate", rate=0.3)
    loss = {"selection": selection, "selection at a rate": at_rate, "csl": functional.csl}[name]
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
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("sizes", "dim", "fits"), [
    ((64, 500, 20), 128, True), ((64, 8192, 80), 128, True), ((256, 0, 5), 16, True), ((40, 100, 5), 1024, True),
    ((257, 500, 20), 128, False), ((8, 40_000, 20), 128, False), ((40, 100, 5), 1025, False),
])  # fmt: skip
def test_contrast_on_the_gpu_is_that_of_the_cpu(
    sizes: tuple[int, int, int], dim: int, fits: bool, dtype: torch.dtype, form: str
) -> None:
    z, classes, queue, kinds = embeddings(*sizes, dim)
    assert fused.contrast_fits(z, queue) == fits
    values, slopes, variant = [], [], "released" if form == "released" else "paper"
    for device in ("cuda", "cpu"):
        x = torch.stack([3 * z, 2 * z.roll(1, 0)]).to(device, dtype).requires_grad_()
        twins = x[1] if form == "paper" else None
        with torch.autocast(device, torch.bfloat16, enabled=dtype != torch.float32):
            past = (t.to(device) for t in (classes, queue, kinds))
            found = label_contrast(x[0], *past, variant=variant, twins=twins)
        (2 * found).backward()
        assert x.grad is not None
        values.append(found.detach().cpu())
        slopes.append(x.grad.cpu().float())
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    most = slopes[1].abs().max().item()
    torch.testing.assert_close(*slopes, rtol=0, atol=most * (1e-5 if dtype == torch.float32 else 1e-2))


@needs_gpu
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_contrast_on_the_gpu_is_the_same_each_time(variant: str) -> None:
    given = embeddings(100, 3000, 20, 128)
    twins = given[0].flip(0) if variant == "paper" else None
    values = [label_contrast(*given, variant=variant, twins=twins) for _ in range(20)]
    assert all(torch.equal(value, values[0]) for value in values)


@needs_gpu
def test_the_host_starts_few_operations_on_the_gpu() -> None:
    """Beside the kernels of this package; they are what takes the time."""
    x, classes, queue, kinds = embeddings(64, 500, 20, 128)
    twins = x.flip(0).requires_grad_()
    with Passes() as found:
        label_contrast(x.requires_grad_(), classes, queue, kinds, twins=twins).backward()
    assert len(found.launched) <= 2, found.launched  # the gradient of 1, and its product
    z, y = batch(64, 80)
    with Passes() as found:
        functional.csl(z, y)
    assert len(found.launched) <= 6, found.launched


@needs_gpu
def test_float64_and_other_tensors_take_the_way_of_pytorch() -> None:
    z, y = batch(16, 20)
    wide = selection(z.double(), y)
    torch.testing.assert_close(selection(z, y).double(), wide, rtol=1e-6, atol=0)
    assert wide.dtype == torch.float64
