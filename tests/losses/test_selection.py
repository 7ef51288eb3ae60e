"""The selection likelihood against counting all label sets and against exact integration of the polynomial."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
import torch

from pluralis.errors import LabelError
from pluralis.losses import selection
from pluralis.losses.selection import selection_nll


def by_counting(z: np.ndarray, written: int, absent: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """P(written) and P(label present | written) by going through every set of labels."""
    p = 1 / (1 + np.exp(-z))
    total, present = 0.0, np.zeros_like(p)
    for y in product((0, 1), repeat=len(z)):
        y = np.array(y)
        if not y[written] or any(y[list(absent)]):
            continue
        weight = np.prod(np.where(y == 1, p, 1 - p)) / y.sum()
        total += weight
        present += weight * y
    return total, present / total


@pytest.mark.parametrize("classes", range(1, 9))
def test_counting_all_label_sets(classes):
    rng = np.random.default_rng(classes)
    z = rng.uniform(-6, 6, (5, classes))
    labels = np.zeros((5, classes), dtype=np.int8)
    written = rng.integers(classes, size=5)
    labels[np.arange(5), written] = 1
    if classes > 2:
        labels[3, (written[3] + 1) % classes] = -1
    nll, slope = selection_nll(torch.from_numpy(z), torch.from_numpy(labels))
    p = 1 / (1 + np.exp(-z))
    for row in range(5):
        total, present = by_counting(z[row], written[row], tuple(np.flatnonzero(labels[row] < 0)))
        assert np.exp(-nll[row].item()) == pytest.approx(total, rel=1e-12)
        np.testing.assert_allclose(slope[row].numpy(), p[row] - present, rtol=1e-9, atol=1e-14)


def exact_integral(p: np.ndarray) -> mpmath.mpf:
    """∫₀¹ Π(1 − p_j s) ds from the coefficients of Π((1−p_j) + p_j t), which are all positive: no cancellation."""
    coefficients = np.ones(1)
    for value in p:
        grown = np.zeros(len(coefficients) + 1)
        grown[:-1] += coefficients * (1 - value)
        grown[1:] += coefficients * value
        coefficients = grown
    return mpmath.fdot(coefficients, [mpmath.mpf(1) / (m + 1) for m in range(len(coefficients))])


def log_p(p: torch.Tensor) -> torch.Tensor:
    return torch.log(p) - torch.log1p(-p)


@pytest.mark.parametrize(
    ("classes", "total"),
    [(300, 1e-6), (300, 3.0), (300, 39.0), (300, 41.0), (300, 250.0), (3000, 45.0), (3000, 1000.0)],
)
def test_many_classes_against_the_exact_polynomial(classes, total):
    g = torch.Generator().manual_seed(classes)
    shape = torch.rand(1, classes, generator=g, dtype=torch.float64) ** (4 if total < classes / 5 else 0.2)
    p = (shape * (total / shape.sum())).clamp(max=1 - 1e-9)
    nll, _ = selection_nll(log_p(p), torch.zeros(1, classes))
    p = log_p(p).sigmoid()  # what the function sees
    exact = exact_integral(p[0].numpy())
    assert abs(mpmath.exp(-mpmath.mpf(nll.item())) / exact - 1) < 1e-9


def test_ten_thousand_classes_and_a_thousand_present():
    for p, count in ((0.1, 10_000), (0.9999, 1_000)):  # equal probabilities have a closed form
        z = torch.full((1, 10_000), -800.0, dtype=torch.float64)
        z[:, :count] = log_p(torch.tensor(p, dtype=torch.float64))
        nll, slope = selection_nll(z, torch.zeros(1, 10_000))
        seen = z[0, 0].sigmoid().item()
        mpmath.mp.dps = 50
        exact = (1 - (1 - mpmath.mpf(seen)) ** (count + 1)) / (mpmath.mpf(seen) * (count + 1))
        assert abs(mpmath.exp(-mpmath.mpf(nll.item())) / exact - 1) < 1e-9
        step = mpmath.mpf("1e-12")
        more = seen + step
        moved = (1 - (1 - mpmath.mpf(more)) ** (count + 1)) / (mpmath.mpf(more) * (count + 1))
        by_p = -(mpmath.log(moved) - mpmath.log(exact)) / step / count
        assert slope[0, 0].item() == pytest.approx(float(by_p) * seen * (1 - seen), rel=1e-8)


def test_fractions_by_hand():
    half = torch.zeros(1, 3, dtype=torch.float64)
    nll, slope = selection_nll(half, torch.tensor([[1, 0, 0]]))
    # P = 1/2·(1/4·1 + 1/2·1/2 + 1/4·1/3) = 7/24, and another label is there in (1/4·1/2 + 1/4·1/3) of 7/12: r = 5/14
    assert np.exp(-nll.item()) == pytest.approx(float(Fraction(7, 24)), rel=1e-14)
    assert slope[0].tolist() == pytest.approx([-0.5, 1 / 2 - 5 / 14, 1 / 2 - 5 / 14], rel=1e-13)


def test_slope_is_the_derivative():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(3, 60, generator=g, dtype=torch.float64) * 3
    labels = torch.randint(-1, 2, (3, 60), generator=g)
    _, slope = selection_nll(z, labels)
    step = 1e-5
    for j in range(0, 60, 7):
        moved = torch.zeros_like(z)
        moved[:, j] = step
        difference = (selection_nll(z + moved, labels)[0] - selection_nll(z - moved, labels)[0]) / (2 * step)
        torch.testing.assert_close(slope[:, j], difference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_logits_are_finite(dtype):
    z = torch.tensor([[1e4, -1e4, 0.0, 1e4, -1e4, 1e4, -1e4]], dtype=dtype)
    nll, slope = selection_nll(z, torch.tensor([[1, 1, 0, 0, 0, -1, -1]]))
    assert nll.isfinite().all()
    assert slope.isfinite().all()
    assert slope.dtype == dtype
    assert slope[0, 1] == -1
    assert slope[0, 5] == 1


def test_all_known_rows_are_cross_entropy():
    z = torch.randn(4, 6, dtype=torch.float64)
    labels = torch.randint(0, 2, (4, 6)) * 2 - 1
    nll, slope = selection_nll(z, labels)
    target = (labels > 0).double()
    plain = torch.nn.functional.binary_cross_entropy_with_logits(z, target, reduction="none").sum(1)
    torch.testing.assert_close(nll, plain, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(slope, z.sigmoid() - target, rtol=1e-13, atol=1e-15)


def test_blocks_make_no_difference(monkeypatch):
    z = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(-1, 2, (9, 5))
    whole = selection_nll(z, labels)
    monkeypatch.setattr(selection, "ENTRIES_PER_BLOCK", 10)
    parts = selection_nll(z, labels)
    torch.testing.assert_close(parts, whole, rtol=1e-14, atol=0)
    assert not whole[0].requires_grad


def test_shapes_must_match():
    with pytest.raises(LabelError, match="shape"):
        selection_nll(torch.zeros(2, 3), torch.zeros(3, 2))
