"""Rates of single classes, against integrals over a fine net of rates and levels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis import class_rates
from pluralis.class_rates import rates_by_class


def integrated(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of the rate of one class, x and y [N], by the sum over all rates and levels."""
    rate, shift = np.meshgrid((np.arange(400) + 0.5) / 400, np.linspace(-6, 6, 481), indexing="ij")
    log = -(shift**2) / 2
    for logit, label in zip(x, y, strict=True):
        p = 1 / (1 + np.exp(-logit - shift))
        log += np.log({1: rate * p, 0: 1 - rate * p, -1: 1 - p}[int(label)])
    chance = np.exp(log - log.max())
    chance /= chance.sum()
    mean = float((chance * rate).sum())
    return mean, float(np.sqrt((chance * (rate - mean) ** 2).sum()))


def simulated(rows: int, steepness: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes that are written at 0.3, 0.6 and 0.9; some of the absent labels of the last are verified.

    And one that is never there nor written, so that every row has an unknown label.
    """
    rng = np.random.default_rng(seed)
    x = steepness * rng.normal(size=(rows, 3)) - 1
    present = rng.random(x.shape) < 1 / (1 + np.exp(-x))
    y = (present & (rng.random(x.shape) < [0.3, 0.6, 0.9])).astype(np.int8)
    y = np.where(~present & (rng.random(x.shape) < [0, 0, 0.2]), -1, y)
    return np.c_[x, np.full(rows, -30.0)], np.c_[y, np.zeros(rows, np.int8)]


def found(x: np.ndarray, y: np.ndarray, every: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rates, errors = rates_by_class(torch.from_numpy(x), torch.from_numpy(y), every)
    return rates.numpy(), errors.numpy()


def test_mean_and_deviation_are_those_of_the_integral() -> None:
    for rows, steepness in ((60, 2.0), (300, 1.0), (300, 4.0)):
        x, y = simulated(rows, steepness, seed=rows)
        rates, errors = found(x, y)
        for column in range(3):
            mean, deviation = integrated(x[:, column], y[:, column])
            assert abs(rates[column] - mean) < 0.02
            assert abs(errors[column] - deviation) < 0.02


def test_errors_hold_the_truth_although_levels_are_off() -> None:
    truth, scores = np.array([0.3, 0.6, 0.9]), []
    for seed in range(30):
        x, y = simulated(600, 3.0, seed)
        off = np.r_[np.random.default_rng(seed).normal(size=3), 0]
        rates, errors = found(x + off, y)
        scores.append((rates[:3] - truth) / errors[:3])
    inside = np.abs(scores) < 2
    assert inside.mean() > 0.9


@pytest.mark.parametrize("rate", [0.005, 0.03, 0.1, 0.3, 0.999])
def test_many_rows_tell_any_rate_as_well_as_they_can(rate: float) -> None:
    """Where present labels are certain, the written ones are a share of them."""
    count = 20_000
    x = np.tile([40.0, -40.0], (count, 1))
    y = np.zeros((count, 2), np.int8)
    y[: round(rate * count), 0] = 1
    rates, errors = found(x, y)
    assert rates[0] == pytest.approx((rate * count + 1) / (count + 2), abs=0.1 * errors[0])  # of a Beta
    assert errors[0] == pytest.approx((rate * (1 - rate) / count) ** 0.5, rel=0.05)


def test_rows_of_which_all_is_known_tell_no_rate() -> None:
    x, y = simulated(1000, 3.0, seed=0)
    plain = found(x, y)
    complete = np.where(np.random.default_rng(1).random(x.shape) < 1 / (1 + np.exp(-x)), 1, -1).astype(np.int8)
    more = found(np.r_[x, x], np.r_[y, complete])
    assert np.abs(more[0] - plain[0])[:3].max() < 0.06
    assert (np.abs(more[0][:3] - [0.3, 0.6, 0.9]) < 3 * more[1][:3]).all()


def test_what_nothing_tells_is_anything() -> None:
    rates, errors = found(np.full((5, 2), -40.0), np.array([[0, 0]] * 4 + [[-1, 0]], np.int8), every=False)
    assert np.allclose(rates, 0.5, atol=0.01)
    assert np.allclose(errors, 12**-0.5, atol=0.01)


def test_rows_without_a_label_count_only_where_somebody_looked() -> None:
    x = np.tile([9.0, -30.0], (100, 1))
    y = np.tile(np.array([[1, 0], [0, 0]], np.int8), (50, 1))
    assert found(x, y)[0][0] < 0.6
    assert found(x, y, every=False)[0][0] > 0.9


def test_blocks_of_classes_are_classes_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = simulated(200, 2.0, seed=0)
    whole = found(x, y)
    monkeypatch.setattr(class_rates, "_ENTRIES", 200)
    assert np.allclose(found(x, y), whole, atol=1e-6)
