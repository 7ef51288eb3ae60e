"""The selection likelihood against counting all label sets and against exact integration of the polynomial."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
import torch

import pluralis
from pluralis.errors import LabelError, RecipeError
from pluralis.losses import functional, pointwise, selection_one
from pluralis.losses.selection import selection, selection_nll, selection_posterior


def by_counting(z: np.ndarray, labels: np.ndarray, chance) -> tuple[float, np.ndarray]:
    """P(written) and P(label present | written) by going through every set of labels.

    `chance(m, k)` is that of the k written ones being what was written when m other labels are present.
    """
    p = 1 / (1 + np.exp(-z))
    total, present = 0.0, np.zeros_like(p)
    for y in product((0, 1), repeat=len(z)):
        y = np.array(y)
        if y[labels > 0].all() and not y[labels < 0].any():
            weight = np.prod(np.where(y == 1, p, 1 - p)) * chance(int(y[labels == 0].sum()), int((labels > 0).sum()))
            total += weight
            present += weight * y
    return total, present / total


def mean_power(a: float, m: int, k: int) -> float:
    """The mean of t^m under Beta(a, k): that of one more t is (a+i)/(a+k+i)."""
    return math.prod((a + i) / (a + k + i) for i in range(m))


MECHANISMS = {
    "one": ({}, lambda m, k: 1 / math.comb(m + k, k)),
    "a = 0.4": ({"a": 0.4}, lambda m, k: mean_power(0.4, m, k)),
    "a = 3": ({"a": 3.0}, lambda m, k: mean_power(3, m, k)),
    "rate": ({"mechanism": "rate", "rate": 0.3}, lambda m, k: 0.7**m),
}


@pytest.mark.parametrize("classes", range(1, 9))
@pytest.mark.parametrize("name", MECHANISMS)
def test_counting_all_label_sets(name, classes):
    options, chance = MECHANISMS[name]
    rng = np.random.default_rng(classes)
    z = rng.uniform(-6, 6, (5, classes))
    labels = np.zeros((5, classes), dtype=np.int8)
    written = rng.integers(classes, size=5)
    labels[np.arange(5), written] = 1
    if classes > 2:
        labels[3, (written[3] + 1) % classes] = -1
        labels[4, (written[4] + 1) % classes] = 1
        labels[4, (written[4] + 2) % classes] = -1
    if classes > 4:
        labels[2, (written[2] + np.arange(4)) % classes] = 1
    logits, given = torch.from_numpy(z).requires_grad_(), torch.from_numpy(labels)
    loss = selection(logits, given, **options, reduction="none")
    loss.sum().backward()
    posterior = selection_posterior(logits, given, **options)
    assert not posterior.requires_grad
    p = 1 / (1 + np.exp(-z))
    for row in range(5):
        total, present = by_counting(z[row], labels[row], chance)
        assert np.exp(-loss[row].item()) == pytest.approx(total, rel=1e-12)
        np.testing.assert_allclose(posterior[row].numpy(), present, rtol=1e-12)
        np.testing.assert_allclose(logits.grad[row].numpy(), p[row] - present, rtol=1e-9, atol=1e-14)


def test_one_of_those_present_is_the_simplest_case():
    """With one written label, the chance is Σ P(y)/|y|."""
    z = np.array([0.3, -1.0, 2.0])
    p = 1 / (1 + np.exp(-z))
    total = 0.0
    for y in product((0, 1), repeat=3):
        total += y[1] * np.prod(np.where(np.array(y) == 1, p, 1 - p)) / max(sum(y), 1)
    nll, _ = selection_nll(torch.from_numpy(z)[None], torch.tensor([[0, 1, 0]]))
    assert np.exp(-nll.item()) == pytest.approx(total, rel=1e-14)


def test_fractions_by_hand():
    half = torch.zeros(1, 3, dtype=torch.float64)
    nll, slope = selection_nll(half, torch.tensor([[1, 0, 0]]))
    # P = 1/2·(1/4·1 + 1/2·1/2 + 1/4·1/3) = 7/24, and another label is there in (1/4·1/2 + 1/4·1/3) of 7/12: r = 5/14
    assert np.exp(-nll.item()) == pytest.approx(float(Fraction(7, 24)), rel=1e-14)
    assert slope[0].tolist() == pytest.approx([-0.5, 1 / 2 - 5 / 14, 1 / 2 - 5 / 14], rel=1e-13)


def exact_integral(p: np.ndarray, a: float = 1.0) -> mpmath.mpf:
    """∫₀¹ Π(1 − p_j s) dπ from the coefficients of Π((1−p_j) + p_j t), which are all positive: no cancellation."""
    coefficients = np.ones(1)
    for value in p:
        coefficients = np.convolve(coefficients, [1 - value, value])
    return mpmath.fdot(coefficients, [mpmath.mpf(a) / (m + a) for m in range(len(coefficients))])


def log_odds(p: torch.Tensor) -> torch.Tensor:
    return torch.log(p) - torch.log1p(-p)


def certain(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The row with a written label in front of which nobody doubts, and its labels: only the integral is left."""
    z = torch.cat([torch.full_like(z[:, :1], 900.0), z], 1)
    labels = torch.zeros(z.shape, dtype=torch.int8)
    labels[:, 0] = 1
    return z, labels


@pytest.mark.parametrize("a", [1.0, 0.5, 4.0])
@pytest.mark.parametrize(
    ("classes", "total"),
    [(300, 1e-6), (300, 3.0), (300, 39.0), (300, 41.0), (300, 250.0), (3000, 45.0), (3000, 1000.0)],
)
def test_many_classes_against_the_exact_polynomial(classes, total, a):
    g = torch.Generator().manual_seed(classes)
    shape = torch.rand(1, classes, generator=g, dtype=torch.float64) ** (4 if total < classes / 5 else 0.2)
    p = (shape * (total / shape.sum())).clamp(max=1 - 1e-9)
    z, labels = certain(log_odds(p))
    exact = exact_integral(z[0, 1:].sigmoid().numpy(), a)
    loss = selection(z, labels, a=a, reduction="sum")
    assert abs(mpmath.exp(-mpmath.mpf(loss.item())) / exact - 1) < 1e-11
    exact = exact_integral(z[0, 1:].float().sigmoid().double().numpy(), a)
    loss = selection(z.float(), labels, a=a, reduction="sum")
    assert loss.item() == pytest.approx(-float(mpmath.log(exact)), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("p", "count"), [(0.1, 10_000), (0.9999, 1_000), (1e-9, 10_000), (0.999, 1), (0.99, 8)])
def test_equal_probabilities_have_a_closed_form(p, count, dtype):
    """∫(1 − ps)^n ds = (1 − (1−p)^{n+1})/((n+1)p), value and derivative."""
    z, labels = certain(torch.full((1, 10_000), -800.0, dtype=dtype))
    z[:, 1 : count + 1] = log_odds(torch.tensor(p, dtype=torch.float64))
    nll, slope = selection_nll(z, labels)
    mpmath.mp.dps = 60
    seen = mpmath.mpf(z[0, 1].sigmoid().item())

    def closed(p: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log((1 - (1 - p) ** (count + 1)) / (p * (count + 1)))

    tight = 1e-11 if dtype == torch.float64 else 1e-6
    assert nll.item() == pytest.approx(-float(closed(seen)), rel=tight)
    step = mpmath.mpf("1e-20")
    by_p = -(closed(seen + step) - closed(seen - step)) / (2 * step) / count
    exact = float(by_p * seen) * float(z[0, 1].neg().sigmoid())
    assert slope[0, 1].item() == pytest.approx(exact, rel=1e-9 if dtype == torch.float64 else 1e-6)


def test_float32_keeps_six_digits_for_all_kinds_of_rows():
    """Also where the rule with few nodes has its largest error: several labels that are there for certain."""
    g = torch.Generator().manual_seed(0)
    rows = [torch.randn(20, 80, generator=g) * scale + shift for scale in (0.5, 2, 6) for shift in (-8, -3, 0, 2)]
    for many in range(1, 30):
        row = torch.full((1, 80), -5.0)
        row[:, :many] = 30.0
        rows.append(row)
    rows.append(torch.linspace(-9, 3, 500)[:, None].expand(-1, 80))
    z, labels = certain(torch.cat(rows))
    exact, exact_slope = selection_nll(z.double(), labels)
    nll, slope = selection_nll(z, labels)
    torch.testing.assert_close(nll, exact, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slope[:, 1:].double(), exact_slope[:, 1:], rtol=1e-6, atol=0)
    chance = selection_posterior(z, labels).double()
    torch.testing.assert_close(chance, selection_posterior(z.double(), labels), rtol=1e-6, atol=0)


def test_limits():
    g = torch.Generator().manual_seed(1)
    z = torch.randn(6, 9, generator=g, dtype=torch.float64) * 2
    labels = torch.randint(-1, 2, (6, 9), generator=g)
    labels[:, 0] = 1
    assumed, ignored = functional.an(z, labels), functional.bce(z, labels, reduction="sum") / z.numel()
    torch.testing.assert_close(selection(z, labels, mechanism="rate", rate=1.0), assumed, rtol=1e-14, atol=0)
    torch.testing.assert_close(selection(z, labels, mechanism="rate", rate=0.0), ignored, rtol=1e-14, atol=0)
    torch.testing.assert_close(selection(z, labels, a=1e-9), assumed, rtol=1e-6, atol=0)
    torch.testing.assert_close(selection(z, labels, a=1e6), ignored, rtol=1e-5, atol=0)
    between = [selection(z, labels, a=a).item() for a in (0.01, 0.3, 1.0, 3.0, 100.0)]
    assert between == sorted(between, reverse=True)
    per_class = torch.full((9,), 0.3, dtype=torch.float64)
    assert selection(z, labels, "rate", rate=per_class) == pytest.approx(selection(z, labels, "rate", rate=0.3).item())


@pytest.mark.parametrize("options", [{}, {"a": 2.5}, {"mechanism": "rate", "rate": 0.6}], ids=str)
def test_fishers_identity(options):
    """The derivative, by differences of the value, is p minus the posterior."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(3, 60, generator=g, dtype=torch.float64) * 3
    labels = torch.randint(-1, 2, (3, 60), generator=g)
    expected = z.sigmoid() - selection_posterior(z, labels, **options)
    step = 1e-5
    for j in range(0, 60, 7):
        moved = torch.zeros_like(z)
        moved[:, j] = step
        up, down = (selection(x, labels, **options, reduction="none") for x in (z + moved, z - moved))
        torch.testing.assert_close((up - down) / (2 * step), expected[:, j], rtol=1e-6, atol=1e-8)


def test_rows_without_a_written_label():
    z = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    nothing, absent = torch.tensor([[0, 0, 0]]), torch.tensor([[0, -1, 0]])
    rate = {"mechanism": "rate", "rate": 0.4}
    p = z.detach().sigmoid()
    minus = -torch.log1p(-p)[0]
    for options in ({}, rate):
        assert selection(z, nothing, **options).item() == pytest.approx(0.0, abs=1e-15)
        assert selection(z, absent, **options, reduction="sum").item() == pytest.approx(minus[1].item())
        torch.testing.assert_close(selection_posterior(z, nothing, **options), p)
        kept = selection_posterior(z, absent, **options)
        assert kept[0].tolist() == pytest.approx([p[0, 0].item(), 0.0, p[0, 2].item()])
    (gradient,) = torch.autograd.grad(selection(z, absent, reduction="sum"), z)
    assert gradient[0].tolist() == pytest.approx([0.0, p[0, 1].item(), 0.0])

    looked = selection(z, nothing, unlabelled="absent", reduction="sum")
    assert looked.item() == pytest.approx(minus.sum().item())
    assert selection_posterior(z, absent, unlabelled="absent").tolist() == [[0.0, 0.0, 0.0]]
    kept = selection(z, absent, **rate, unlabelled="absent", reduction="sum")
    assert kept.item() == pytest.approx((minus[1] - torch.log1p(-0.4 * p[0, [0, 2]]).sum()).item())
    found = selection_posterior(z, nothing, **rate, unlabelled="absent")
    torch.testing.assert_close(found, 0.6 * p / (1 - 0.4 * p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [None, 0.5, 0.0])
def test_large_logits_are_finite(dtype, rate):
    options = {} if rate is None else {"mechanism": "rate", "rate": rate}
    z = torch.tensor([[1e4, -1e4, 0.0, 1e4, -1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([[1, 1, 0, 0, 0, -1, -1]])
    loss = selection(z, labels, **options, reduction="sum")
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()
    assert (z.grad[0, 1], z.grad[0, 5]) == (-1, 1)
    posterior = selection_posterior(z, labels, **options)
    assert posterior.isfinite().all()
    assert posterior.dtype == torch.float32
    assert posterior[0, 3] == 1  # there for certain, written or not


def test_all_known_rows_are_cross_entropy():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(4, 6, generator=g, dtype=torch.float64)
    labels = torch.randint(0, 2, (4, 6), generator=g) * 2 - 1
    labels[:, 0] = 1
    nll, slope = selection_nll(z, labels)
    target = (labels > 0).double()
    plain = torch.nn.functional.binary_cross_entropy_with_logits(z, target, reduction="none").sum(1)
    torch.testing.assert_close(nll, plain, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(slope, z.sigmoid() - target, rtol=1e-13, atol=1e-15)


def test_blocks_make_no_difference(monkeypatch):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(9, 5, generator=g, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(-1, 2, (9, 5), generator=g)
    whole = *selection_nll(z, labels), selection_posterior(z, labels), selection_posterior(z, labels, "rate", rate=0.2)
    monkeypatch.setattr(pointwise, "ENTRIES_A_THREAD", 5)
    monkeypatch.setattr(selection_one, "TOGETHER", 50)
    parts = *selection_nll(z, labels), selection_posterior(z, labels), selection_posterior(z, labels, "rate", rate=0.2)
    torch.testing.assert_close(parts, whole, rtol=1e-13, atol=1e-15)
    assert not whole[0].requires_grad


def test_a_broken_network_gives_nan_and_no_crash():
    z = torch.tensor([[float("nan"), 0.0], [0.0, 0.0]])
    rows = selection(z, torch.tensor([[0, 1], [1, 0]]), reduction="none")
    assert rows.isnan().tolist() == [True, False]


def test_no_classes_no_loss():
    assert selection(torch.zeros(3, 0), torch.zeros(3, 0)) == 0


@pytest.mark.parametrize("several", [None, False, True])
def test_no_rows_no_loss(several):
    assert selection(torch.zeros(0, 3), torch.zeros(0, 3), several=several) == 0


def test_bad_inputs_are_named():
    with pytest.raises(LabelError, match="shape"):
        selection_nll(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(LabelError, match="a row for each image"):
        selection(torch.zeros(3), torch.zeros(3))
    z, labels = torch.zeros(1, 2), torch.zeros(1, 2)
    with pytest.raises(RecipeError, match="mechanism is 'two'; it must be one of one, rate"):
        selection(z, labels, mechanism="two")
    with pytest.raises(RecipeError, match="unlabelled is 'zero'; it must be one of skip, absent"):
        selection_posterior(z, labels, unlabelled="zero")
    with pytest.raises(RecipeError, match="needs a rate"):
        selection(z, labels, mechanism="rate")
    assert pluralis.selection_posterior is selection_posterior
