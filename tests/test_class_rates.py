"""Rates of single classes, against integrals over a fine net of rates and levels."""

from __future__ import annotations

import numpy as np
import torch

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
    """Three classes that are written at 0.3, 0.6 and 0.9; some of the absent labels of the last are verified."""
    rng = np.random.default_rng(seed)
    x = steepness * rng.normal(size=(rows, 3)) - 1
    present = rng.random(x.shape) < 1 / (1 + np.exp(-x))
    y = (present & (rng.random(x.shape) < [0.3, 0.6, 0.9])).astype(np.int8)
    return x, np.where(~present & (rng.random(x.shape) < [0, 0, 0.2]), -1, y)


def test_mean_and_deviation_are_those_of_the_integral() -> None:
    for rows, steepness in ((60, 2.0), (300, 1.0), (300, 4.0)):
        x, y = simulated(rows, steepness, seed=rows)
        rates, errors = rates_by_class(torch.from_numpy(x), torch.from_numpy(y), every=True)
        for column in range(3):
            mean, deviation = integrated(x[:, column], y[:, column])
            assert abs(rates[column] - mean) < 0.02
            assert abs(errors[column] - deviation) < 0.02


def test_errors_hold_the_truth_although_levels_are_off() -> None:
    truth, scores = np.array([0.3, 0.6, 0.9]), []
    for seed in range(30):
        x, y = simulated(600, 3.0, seed)
        off = np.random.default_rng(seed).normal(size=3)
        rates, errors = rates_by_class(torch.from_numpy(x + off), torch.from_numpy(y), every=True)
        scores.append((rates.numpy() - truth) / errors.numpy())
    inside = np.abs(scores) < 2
    assert inside.mean() > 0.9


def test_what_nothing_tells_is_anything() -> None:
    rate, error = rates_by_class(torch.full((5, 1), -40.0), torch.tensor([[0]] * 4 + [[-1]]))
    assert abs(rate.item() - 0.5) < 0.01
    assert abs(error.item() - 12**-0.5) < 0.01


def test_rows_without_a_label_count_only_where_somebody_looked() -> None:
    x, y = torch.full((100, 1), 9.0, dtype=torch.float64), torch.tensor([[1], [0]]).repeat(50, 1)
    assert rates_by_class(x, y, every=True)[0].item() < 0.6
    assert rates_by_class(x, y)[0].item() > 0.9
