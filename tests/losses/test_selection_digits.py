"""How many digits the likelihood of picked labels has: value, derivative and posterior, entry by entry.

The reference is plain Gauss-Legendre on panels that halve towards both ends of the interval, in float64, with no rule
in common with the code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.losses import selection_posterior
from pluralis.losses.rowwise import walk_rows
from pluralis.losses.selection_one import one_likelihood

CLASSES = 10_000


class Row(NamedTuple):
    """Minus the logarithm of the integral, and of each label the derivative of that and the chance of being there."""

    loss: float
    slope: np.ndarray
    chance: np.ndarray


def reference(z: np.ndarray, a: float, written: int = 1) -> Row:
    """Of unknown labels with logits z [C] beside so many written ones. With u = t^a the measure is s^(k−1) du / ∫…"""
    each, place, count = np.unique(z, return_inverse=True, return_counts=True)
    x, w = np.polynomial.legendre.leggauss(20)
    ends = np.r_[0.0, 2.0 ** np.arange(-60.0, 0.0)]
    width = np.diff(ends)[:, None]
    near = (ends[:-1, None] + width * (x + 1) / 2).ravel()  # from 0 to 1/2
    weight = np.tile((width * w / 2).ravel(), 2)
    log_t = np.r_[np.log(near), np.log1p(-near)] / a  # towards u = 0, and towards u = 1
    t, s = np.exp(log_t), -np.expm1(log_t)
    weight = weight * s ** (written - 1)
    weight /= weight.sum()
    p, rest = (1 / (1 + np.exp(-side * each[:, None])) for side in (1, -1))
    factor = rest + p * t
    log_product = count @ np.where(s < 0.5, np.log1p(-p * np.minimum(s, 0.5)), np.log(factor))
    total, less = weight @ np.exp(log_product), weight @ np.expm1(log_product)  # the integral, and less 1
    share = weight * np.exp(log_product) / total
    slope, chance = p[:, 0] * rest[:, 0] * (share * s / factor).sum(1), p[:, 0] * (share * t / factor).sum(1)
    return Row(-np.log1p(less) if less > -0.5 else -np.log(total), slope[place], chance[place])


def test_the_reference_has_the_closed_form_of_equal_labels() -> None:
    """∫(1 − ps)^n ds = (1 − (1−p)^{n+1})/((n+1)p), and r of two labels by hand: p(1/2 − p/6)/(1 − p + p²/3)."""
    for p, n in ((0.3, 7), (0.999, 1), (0.9, 400), (1e-3, 10_000)):
        row = reference(np.full(n, np.log(p / (1 - p))), 1.0)
        assert row.loss == pytest.approx(-np.log((1 - (1 - p) ** (n + 1)) / ((n + 1) * p)), rel=1e-12)
    row = reference(np.full(2, np.log(0.3 / 0.7)), 1.0)
    chance = 0.3 * (1 / 2 - 0.3 / 6) / (1 - 0.3 + 0.3**2 / 3)
    assert row.chance.tolist() == pytest.approx([chance] * 2, rel=1e-13)
    assert row.slope.tolist() == pytest.approx([0.3 - chance] * 2, rel=1e-12)
    assert reference(np.zeros(1), 3.0).loss == pytest.approx(-np.log(1 / 2 + 1 / 2 * 3 / 4), rel=1e-13)


def two_levels(low: float, high: float, many: int) -> Tensor:
    z = torch.full((CLASSES,), low)
    z[:many] = high
    return z


def hard_rows() -> dict[str, list[Tensor]]:
    """Few labels that are nearly certain among many; a few very different ones; sums of p from 0 to 1,000 and above."""
    g = torch.Generator().manual_seed(0)
    counts = (1, 2, 3, 5, 8, 12, 20, 30, 39, 100, 990)
    rows = {f"{low} and {high}": [two_levels(low, high, n) for n in counts] for low in (-30, -9) for high in (3, 9, 30)}
    rows["wide"] = list(torch.randn(60, 20, generator=g) * 6)
    rows["wider"] = list(torch.randn(60, 20, generator=g) * 20)
    rows["two"] = list(torch.randn(60, 2, generator=g) * 6)
    rows["usual"] = [torch.randn(80, generator=g) * s + m for s in (0.5, 2, 6) for m in (-8, -3, 0, 2)]
    rows["equal"] = [torch.full((CLASSES,), z) for z in (-80.0, -30.0, -12.0, -9.2, -7.0, -5.0, -2.2, 0.0)]
    return rows


HARD = hard_rows()


def test_the_reference_has_the_closed_form_of_several_picks() -> None:
    """Where all are present, k of n + k are picked: one way of binom(n + k, k)."""
    for n, k in ((1, 2), (3, 2), (10, 5), (400, 32)):
        assert reference(np.full(n, 45.0), 1.0, k).loss == pytest.approx(math.log(math.comb(n + k, k)), rel=1e-9)


@pytest.mark.parametrize("written", [1, 2, 5, 12, 50])
@pytest.mark.parametrize("a", [1.0, 2.5, 30.0, 0.4, 0.1])
@pytest.mark.parametrize("name", HARD)
def test_digits(name: str, a: float, written: int) -> None:
    rows = HARD[name] if written == 1 else HARD[name][::5]
    for row in rows:
        exact = reference(row.double().numpy(), a, min(written, 32))  # more count as so many
        for dtype, rtol in ((torch.float32, 1e-6), (torch.float64, 1e-11 if written <= 5 else 2e-7)):
            z = torch.cat([torch.full((written,), 900.0), row])[None].to(dtype)  # what is written nobody doubts
            y = torch.zeros(z.shape, dtype=torch.int8)
            y[0, :written] = 1
            loss, slope, _ = walk_rows(one_likelihood(a, absent=False), z, y)
            assert slope is not None
            chance = selection_posterior(z, y, a=a)
            # A product of 10,000 factors near 1 has an absolute error, and so has the logarithm of it.
            np.testing.assert_allclose(loss.item(), exact.loss, rtol=rtol, atol=1e-11)
            np.testing.assert_allclose(slope[0, written:].double().numpy(), exact.slope, rtol=rtol, atol=0)
            np.testing.assert_allclose(chance[0, written:].double().numpy(), exact.chance, rtol=rtol, atol=0)
