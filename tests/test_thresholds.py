"""Thresholds by class: the best ones by brute force, and those from written labels alone against the truth."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

from pluralis import thresholds
from pluralis.errors import DataError, LabelError
from pluralis.thresholds import best_thresholds, f1_at, observed_thresholds


def expected_f1(scores: np.ndarray, chances: np.ndarray, threshold: float) -> float:
    taken = scores >= threshold
    return 2 * chances[taken].sum() / (taken.sum() + chances.sum())


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-4, 5, size=(30, 6)).astype(float)  # many are equal
    chances = (rng.random((30, 6)) < 0.3).astype(float) if seed % 2 else rng.random((30, 6)) ** 2
    chances[:, 5] = 0
    found = best_thresholds(torch.from_numpy(scores), torch.from_numpy(chances)).numpy()
    for c in range(5):
        tried = [expected_f1(scores[:, c], chances[:, c], t) for t in np.unique(scores[:, c])]
        assert expected_f1(scores[:, c], chances[:, c], found[c]) == pytest.approx(max(tried), rel=1e-12)
    together = [expected_f1(scores.ravel(), chances.ravel(), t) for t in np.unique(scores)]
    assert expected_f1(scores.ravel(), chances.ravel(), found[5]) == pytest.approx(max(together), rel=1e-12)


def simulate(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of another scale and offset than probabilities have, the truth, and one label picked for each row."""
    rng = np.random.default_rng(seed)
    z = rng.normal(rng.normal(-1.5, 0.7, size=8), 2.0, size=(rows, 8))
    truth = np.where(rng.random(z.shape) < 1 / (1 + np.exp(-z)), 1, -1)
    keep = (truth > 0).any(1)
    z, truth = z[keep], truth[keep]
    shown = np.zeros_like(truth)
    for row, labels in enumerate(truth):
        shown[row, rng.choice(np.flatnonzero(labels > 0))] = 1
    return torch.from_numpy(z * 0.4 - 2.0), torch.from_numpy(truth), torch.from_numpy(shown)


def test_written_labels_alone_do_nearly_as_well_as_complete_ones() -> None:
    z, truth, shown = simulate(1500, 0)
    test, test_truth, _ = simulate(4000, 1)
    found = observed_thresholds(z, shown)
    raw, clean = f1_at(test, test_truth, 0.0), f1_at(test, test_truth, best_thresholds(z, truth > 0))
    mine = f1_at(test, test_truth, found.values)
    assert raw["CF1"] < 40 < clean["CF1"] - 20
    assert mine["CF1"] == pytest.approx(clean["CF1"], abs=1.5)
    assert mine["OF1"] == pytest.approx(clean["OF1"], abs=1.5)
    assert 100 * found.cf1 == pytest.approx(mine["CF1"], abs=3)
    assert 100 * found.of1 == pytest.approx(mine["OF1"], abs=3)
    assert found.labels_a_row == pytest.approx(float((truth > 0).sum()) / len(truth), rel=0.06)


def test_what_was_verified_counts() -> None:
    z, truth, _ = simulate(400, 2)
    found = observed_thresholds(z, truth)  # everything is known: then it is the truth itself
    assert torch.equal(found.values, best_thresholds(z, truth > 0))
    assert 100 * found.cf1 == pytest.approx(f1_at(z, truth, found.values)["CF1"], rel=1e-12)
    assert 100 * found.of1 == pytest.approx(f1_at(z, truth, found.values)["OF1"], rel=1e-12)


def test_what_cannot_be_fitted_is_said() -> None:
    with pytest.raises(LabelError, match=r"\(2, 3\)"):
        best_thresholds(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(DataError, match="no held-out row has a label"):
        observed_thresholds(torch.zeros(2, 3), torch.zeros(2, 3))


def test_examples() -> None:
    found = doctest.testmod(thresholds)
    assert found.attempted
    assert not found.failed
