from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize

from pluralis.bench.figures.false_negatives import draw_false_negatives, false_negatives
from pluralis.bench.figures.predicted import Predictions, predictions
from pluralis.bench.store import Result
from tests.bench.figures.test_separation import made


def test_ratios_are_counts_in_each_bin() -> None:
    found = made(2)
    got = false_negatives([found], bins=10)
    unknown = found.given == 0
    for p, ratio, labels in zip(got.p, got.ratio, got.labels, strict=True):
        low = math.floor(p * 10) / 10
        here = unknown & (found.p >= low) & (found.p < low + 0.1)
        assert labels == here.sum()
        assert ratio == pytest.approx(float(Fraction(int((found.truth[here] > 0).sum()), int(here.sum()))))
        assert p == pytest.approx(found.p[here].mean())
    assert got.labels.sum() == unknown.sum()
    assert got.written == pytest.approx((found.given > 0).sum() / (found.truth > 0).sum())


def test_the_logistic_curve_is_the_most_likely_one() -> None:
    draw = np.random.default_rng(3)
    p = draw.random((5000, 2))
    truth = np.where(draw.random(p.shape) < 1 / (1 + np.exp(-(7 * p - 4))), 1, -1).astype(np.int8)
    got = false_negatives([Predictions(("a", "b"), p, np.zeros_like(truth), truth)], bins=100)
    hidden = got.ratio * got.labels

    def nll(beta: np.ndarray) -> float:
        z = beta[0] * got.p + beta[1]
        return float((hidden * np.logaddexp(0, -z) + (got.labels - hidden) * np.logaddexp(0, z)).sum())

    reference = scipy.optimize.minimize(nll, [0.0, 0.0], method="BFGS").x
    assert [got.w, got.b] == pytest.approx(reference, rel=1e-3)
    assert [got.w, got.b] == pytest.approx([7, -4], abs=0.3)
    assert got.fitted(np.array([0.5])) == pytest.approx(1 / (1 + math.exp(-(got.w / 2 + got.b))))


def test_the_exact_curve_holds_where_p_is_right_and_labels_are_written_at_random() -> None:
    draw = np.random.default_rng(4)
    p = draw.random((200_000, 1))
    truth = np.where(draw.random(p.shape) < p, 1, -1).astype(np.int8)
    given = np.where((truth > 0) & (draw.random(p.shape) < 0.6), 1, 0).astype(np.int8)
    got = false_negatives([Predictions(("a",), p, given, truth)], bins=20)
    assert got.written == pytest.approx(0.6, abs=0.01)
    assert got.ratio == pytest.approx(got.exact(got.p), abs=0.03)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_kind_of_label_alone_has_no_fit(sign: int) -> None:
    truth = np.full((5, 1), sign, np.int8)
    got = false_negatives([Predictions(("a",), np.full((5, 1), 0.5), np.zeros((5, 1), np.int8), truth)])
    assert got.ratio.tolist() == [float(sign > 0)]
    assert math.isnan(got.w)
    assert math.isnan(got.written) == (sign < 0)


def test_constant_probabilities_give_a_flat_fit() -> None:
    truth = np.array([[1], [-1], [-1], [-1]], np.int8)
    got = false_negatives([Predictions(("a",), np.full((4, 1), 0.5), np.zeros((4, 1), np.int8), truth)])
    assert got.fitted(np.array([0.5])) == pytest.approx(0.25, abs=1e-3)


def test_it_is_drawn_from_real_runs(kept: list[Result]) -> None:
    figure = draw_false_negatives(kept[:2], bins=10)
    (axes,) = figure.axes
    got = false_negatives([predictions(run) for run in kept[:2]], bins=10)
    assert np.allclose(axes.collections[0].get_offsets(), np.stack([got.p, got.ratio], 1))
    assert f"a = {got.written:.2f}" in axes.get_title()
