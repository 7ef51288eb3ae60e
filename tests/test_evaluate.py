"""Calibration from written labels alone, and the three rules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from pluralis.calibration import Calibration, calibrate
from pluralis.conditional_calibration import Likelihood, given_something, most_likely
from pluralis.data.loader import Loader, TensorImages
from pluralis.errors import DataError
from pluralis.evaluate import Clean, Last, Observed, evaluate
from pluralis.labels import Labels
from pluralis.losses.selection import selection_nll
from pluralis.method import LossMethod
from pluralis.metrics import mean_average_precision
from tests.toys import loss_method, scenes


def picked(seed: int, rows: int = 4000, classes: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """True logits [N, C], and one label a row picked evenly among those present; all absent where none is."""
    chance = np.random.default_rng(seed)
    logits = chance.normal(-1, 1.5, (rows, classes))
    present = chance.random((rows, classes)) < 1 / (1 + np.exp(-logits))
    labels = np.zeros((rows, classes), np.int8)
    for row, truth in enumerate(present):
        if truth.any():
            labels[row, chance.choice(np.flatnonzero(truth))] = 1
        else:
            labels[row] = -1
    return torch.from_numpy(logits), torch.from_numpy(labels)


def test_calibration_finds_scale_and_shift_from_single_labels() -> None:
    logits, labels = picked(0)
    found, nll = calibrate(3.0 * logits + 2.0, labels)
    assert 3.0 * found.a == pytest.approx(1.0, abs=0.15)
    assert 2.0 * found.a + found.b == pytest.approx(0.0, abs=0.25)
    _, plain = calibrate(logits, labels)
    assert nll == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("likelihood", [selection_nll, given_something])
def test_the_calibration_is_the_most_likely_one_by_all_sets_of_labels(likelihood: Likelihood) -> None:
    logits, labels = picked(7, rows=200, classes=4)
    shown = (labels > 0).any(1)
    z, pick = 0.4 * logits[shown].numpy() + 1, labels[shown].argmax(1).numpy()
    sets = np.array(list(itertools.product((0, 1), repeat=4)))  # the first is empty

    def loss(x: np.ndarray) -> float:
        p = 1 / (1 + np.exp(-np.exp(x[0]) * z - x[1]))
        chance = np.where(sets, p[:, None], 1 - p[:, None]).prod(2)
        likely = (chance * sets[:, pick].T / sets.sum(1).clip(1)).sum(1)
        if likelihood is given_something:
            likely /= 1 - chance[:, 0]
        return float(-np.log(likely).sum() + x[0] ** 2 / 2 + x[1] ** 2 / 18)

    best = min((minimize(loss, (0, b), method="Nelder-Mead") for b in (-2, 2)), key=lambda found: found.fun)
    theta, nll = most_likely(torch.from_numpy(z), labels[shown], likelihood)
    np.testing.assert_allclose(theta, best.x, atol=2e-3)
    assert nll == pytest.approx((best.fun - theta[0] ** 2 / 2 - theta[1] ** 2 / 18) / len(z), abs=1e-6)


def test_better_logits_have_the_better_likelihood() -> None:
    logits, labels = picked(1)
    noise = torch.from_numpy(np.random.default_rng(5).normal(0, 2, tuple(logits.shape)))
    assert calibrate(logits, labels)[1] < calibrate(logits + noise, labels)[1]


def test_extreme_logits_do_not_break_calibration() -> None:
    logits, labels = picked(2, rows=200)
    for scale in (1e-4, 1e4):
        found, nll = calibrate(scale * logits, labels)
        assert np.isfinite([found.a, found.b, nll]).all()


def test_rows_without_labels_say_nothing() -> None:
    logits, labels = picked(3, rows=500)
    more = torch.cat([logits, torch.full((50, 8), 9.0, dtype=torch.float64)])
    padded = torch.cat([labels, torch.zeros(50, 8, dtype=torch.int8)])
    assert calibrate(more, padded) == calibrate(logits, labels)
    with pytest.raises(DataError, match=r"select\.rule"):
        calibrate(logits, torch.zeros_like(labels))


def linear(features: torch.Tensor, labels: Labels, weight: torch.Tensor) -> tuple[LossMethod, Loader]:
    net = torch.nn.Linear(features.shape[1], len(weight), bias=False)
    net.weight.data = weight.float()
    return LossMethod(net, torch.nn.Identity()), Loader(TensorImages(features), labels, size=8)


def test_observed_prefers_the_truth_and_its_score_is_the_likelihood() -> None:
    logits, labels = picked(4, rows=1500)
    made = Labels.from_dense(labels)
    good, data = linear(logits.float(), made, torch.eye(8))
    bad, _ = linear(logits.float(), made, torch.eye(8).roll(1, 0))
    rule = Observed(data)
    assert rule.score(good)["score"] > rule.score(bad)["score"]
    assert rule.score(good)["score"] == pytest.approx(-calibrate(logits.float(), labels)[1])
    assert "1500 held-out rows" in rule.describe()


def test_clean_is_the_mean_average_precision_and_needs_every_label() -> None:
    data = scenes(60, "val", complete=True)
    method = loss_method()
    scores = Clean(data).score(method)
    from pluralis.evaluate import predict

    expected = mean_average_precision(predict(method, data), torch.from_numpy(data.labels.dense())).value
    assert scores["score"] == pytest.approx(expected)
    with pytest.raises(DataError, match="unknown ones"):
        Clean(scenes(10))


def test_last_chooses_nothing() -> None:
    assert Last().score(loss_method()) == {}


def test_evaluate_uses_the_calibrated_threshold() -> None:
    truth = torch.tensor([[1, -1], [-1, 1]])
    method, data = linear(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), Labels.from_dense(truth), torch.eye(2))
    plain, moved = evaluate(method, data), evaluate(method, data, Calibration(1.0, -1.5))
    assert plain["mAP"] == moved["mAP"] == 100.0
    assert plain["OF1"] == pytest.approx(200 / 3)
    assert moved["OF1"] == moved["CF1"] == 100.0


def test_a_handful_of_rows_cannot_run_away_with_the_calibration() -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(6, 3, dtype=torch.int8)
    labels[torch.arange(6), torch.arange(6) % 3] = 1
    found, _ = calibrate(logits, labels)
    assert 0.1 < found.a < 10
    assert abs(found.b) < 6


def test_clean_needs_a_positive() -> None:
    truth = -torch.ones(4, 2)
    _, data = linear(torch.randn(4, 2), Labels.from_dense(truth), torch.eye(2))
    with pytest.raises(DataError, match="none"):
        Clean(data)
