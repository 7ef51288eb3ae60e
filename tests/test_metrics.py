"""Metrics against scikit-learn, and the conventions for empty classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from pluralis import metrics
from pluralis.errors import LabelError, RecipeError
from pluralis.labels import Labels
from pluralis.metrics import average_precision, f1_scores, mean_average_precision


def example(rows=200, classes=6, decimals=None, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.where(rng.random((rows, classes)) < np.linspace(0.05, 0.9, classes), 1, -1)
    scores = rng.normal(size=(rows, classes)) + truth * np.linspace(-0.5, 2, classes)
    return scores if decimals is None else scores.round(decimals), truth


def by_sklearn(scores, truth):
    return np.array([average_precision_score(t[t != 0] > 0, s[t != 0]) for s, t in zip(scores.T, truth.T, strict=True)])


@pytest.mark.parametrize("decimals", [None, 1, 0])
@pytest.mark.parametrize("rows", [1, 2, 3, 200])
def test_average_precision_is_that_of_scikit_learn(rows, decimals):
    scores, truth = example(rows, decimals=decimals)
    truth[0] = 1  # a positive in every class
    got = average_precision(torch.from_numpy(scores), torch.from_numpy(truth))
    np.testing.assert_allclose(got.numpy(), by_sklearn(scores, truth), rtol=1e-12)


def test_unknown_entries_are_left_out():
    scores, truth = example(decimals=1)
    truth[np.random.default_rng(1).random(truth.shape) < 0.4] = 0
    got = average_precision(torch.from_numpy(scores), torch.from_numpy(truth))
    np.testing.assert_allclose(got.numpy(), by_sklearn(scores, truth), rtol=1e-12)


def test_constant_scores_and_all_positive_class():
    truth = torch.tensor([[1, 1], [-1, 1], [-1, 1], [1, 1]])
    assert average_precision(torch.zeros(4, 2), truth).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("decimals", [None, 0])
def test_the_way_for_accelerators_gives_the_same(decimals):
    scores, truth = example(decimals=decimals)
    truth[np.random.default_rng(1).random(truth.shape) < 0.2] = 0
    truth[:, 3] = -1
    scores, truth = (torch.from_numpy(a.T.copy()) for a in (scores, truth))
    one, other = metrics._class_after_class(scores, truth), metrics._all_at_once(scores, truth)
    torch.testing.assert_close(one, other, rtol=1e-13, atol=0, equal_nan=True)


def test_infinite_scores_have_a_place():
    scores = torch.tensor([[-torch.inf], [torch.inf], [-torch.inf], [0.0]])
    assert average_precision(scores, torch.tensor([[1], [-1], [0], [1]])).item() == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_row_order_never_matters():
    scores, truth = (torch.from_numpy(a) for a in example(decimals=0))
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))
    assert torch.equal(average_precision(scores, truth), average_precision(scores[order], truth[order]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_scores_of_any_type(dtype):
    scores, truth = (torch.from_numpy(a) for a in example())
    scores = (scores * 100).to(dtype)
    expected = by_sklearn(scores.double().numpy(), truth.numpy())
    np.testing.assert_allclose(average_precision(scores, truth).numpy(), expected, rtol=1e-12)
    f1 = f1_scores(scores, truth, threshold=30.5)
    expected = f1_score(truth.numpy() > 0, scores.double().numpy() >= 30.5, average=None)
    np.testing.assert_allclose(f1.f1.numpy(), expected, rtol=1e-12)


def test_close_float64_scores_stay_apart():
    scores = torch.tensor([[1.0], [1.0 + 1e-12]], dtype=torch.float64)
    assert average_precision(scores, torch.tensor([[-1], [1]])).item() == 1.0


def test_blocks_of_classes_make_no_difference(monkeypatch):
    scores, truth = (torch.from_numpy(a) for a in example(decimals=1))
    whole = average_precision(scores, truth)
    monkeypatch.setattr(metrics, "ENTRIES_PER_BLOCK", 400)
    assert torch.equal(average_precision(scores, truth), whole)


def test_classes_without_positives():
    scores, truth = (torch.from_numpy(a) for a in example())
    truth[:, 2] = -1
    paper = mean_average_precision(scores, truth)
    released = mean_average_precision(scores, truth, variant="released")
    kept = np.delete(by_sklearn(np.delete(scores.numpy(), 2, 1), np.delete(truth.numpy(), 2, 1)), [])
    assert paper.skipped == released.skipped == 1
    assert paper.per_class[2].isnan()
    assert paper.value == pytest.approx(kept.mean(), rel=1e-12)
    assert released.value == pytest.approx(kept.sum() / 6, rel=1e-12)
    nothing = mean_average_precision(scores, -torch.ones_like(truth))
    assert np.isnan(nothing.value)
    assert nothing.skipped == 6
    with pytest.raises(RecipeError, match="variant"):
        mean_average_precision(scores, truth, variant="other")


def test_f1_is_that_of_scikit_learn():
    scores, truth = example()
    truth[:, 0] = -1  # never present
    scores[:, 1] = -9.0  # never predicted
    scores[:, 2], truth[:, 2] = -9.0, -1  # neither
    got = f1_scores(torch.from_numpy(scores), torch.from_numpy(truth), threshold=0.5)
    t, d = truth > 0, scores >= 0.5
    options = {"average": None, "zero_division": 0}
    np.testing.assert_allclose(got.precision.numpy(), precision_score(t, d, **options), rtol=1e-12)
    np.testing.assert_allclose(got.recall.numpy(), recall_score(t, d, **options), rtol=1e-12)
    np.testing.assert_allclose(got.f1.numpy(), f1_score(t, d, **options), rtol=1e-12)
    assert got.cp == pytest.approx(precision_score(t, d, average="macro", zero_division=0), rel=1e-12)
    assert got.cr == pytest.approx(recall_score(t, d, average="macro", zero_division=0), rel=1e-12)
    assert got.cf1 == pytest.approx(2 * got.cp * got.cr / (got.cp + got.cr), rel=1e-12)
    assert got.op == pytest.approx(precision_score(t, d, average="micro"), rel=1e-12)
    assert got.or_ == pytest.approx(recall_score(t, d, average="micro"), rel=1e-12)
    assert got.of1 == pytest.approx(f1_score(t, d, average="micro"), rel=1e-12)
    assert got.empty == 2
    assert f1_scores(torch.from_numpy(d), torch.from_numpy(t)).of1 == got.of1  # decisions and full truth as bool


def test_f1_leaves_out_unknown_entries_and_takes_a_threshold_per_class():
    scores = torch.tensor([[0.2, 0.8], [0.3, 0.9], [0.9, 0.9]])
    truth = torch.tensor([[1, -1], [0, 1], [-1, 0]])
    got = f1_scores(scores, truth, threshold=torch.tensor([0.1, 0.85]))
    assert got.precision.tolist() == [0.5, 1.0]
    assert got.recall.tolist() == [1.0, 1.0]
    with pytest.raises(RecipeError, match="2 classes"):
        f1_scores(scores, truth, threshold=torch.zeros(3))


def test_f1_of_nothing_is_zero_and_a_tie_counts_as_present():
    none = f1_scores(torch.zeros(2, 2), -torch.ones(2, 2))
    assert (none.cf1, none.of1, none.cp, none.op) == (0, 0, 0, 0)
    for tie in (0.5, 0.7):
        assert f1_scores(torch.full((1, 1), tie), torch.ones(1, 1), threshold=tie).cf1 == 1


def test_what_cannot_be_measured_is_named():
    with pytest.raises(LabelError, match="nothing to measure"):
        average_precision(torch.zeros(0, 3), torch.zeros(0, 3))
    with pytest.raises(LabelError, match=r"\(2, 3\).*\(2, 2\)"):
        average_precision(torch.zeros(2, 3), torch.zeros(2, 2))
    with pytest.raises(LabelError, match="row 1, class 0 is NaN"):
        average_precision(torch.tensor([[0.0], [float("nan")]]), torch.tensor([[1], [-1]]))
    with pytest.raises(LabelError, match="pass a bool truth"):
        average_precision(torch.rand(3, 1), torch.tensor([[1], [0], [0]]))


def test_a_class_without_a_known_absent_label_is_left_out() -> None:
    """Of such a class any order of the rows would score 1."""
    truth = torch.zeros(50, 4)
    truth[torch.arange(50), torch.arange(50) % 4] = 1
    truth[0, 1] = -1
    scores = torch.rand(50, 4)
    per_class = average_precision(scores, truth)
    assert per_class.isnan().tolist() == [True, False, True, True]
    assert mean_average_precision(scores, truth).skipped == 3
    complete = torch.ones(5, 1)
    assert average_precision(torch.rand(5, 1), complete).tolist() == [1.0]


def test_arrays_and_labels_are_taken():
    scores = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    truth = torch.tensor([[1, -1, 0]] * 10 + [[-1, 1, 1]] * 10)
    truth[3, 2] = -1
    best = mean_average_precision(scores, truth), f1_scores(scores, truth, torch.tensor([0.3, 0.5, 0.7]))
    for given in (truth.numpy(), Labels.from_dense(truth), truth.float(), truth.tolist()):
        assert mean_average_precision(scores.numpy(), given).value == best[0].value
        assert f1_scores(scores.numpy(), given, np.array([0.3, 0.5, 0.7])).cf1 == best[1].cf1
    assert (
        average_precision(scores.numpy(), truth.numpy() > 0).tolist() == average_precision(scores, truth > 0).tolist()
    )


@pytest.mark.parametrize("value", [0.3, 2.0, math.nan])
def test_truth_that_means_nothing_is_named(value):
    truth = torch.tensor([[1.0, -1.0], [value, 1.0]])
    for measure in (average_precision, mean_average_precision, f1_scores):
        with pytest.raises(LabelError, match=f"metrics, truth: the label of row 1, class 0 is {value}"):
            measure(torch.rand(2, 2), truth)
    with pytest.raises(LabelError, match="255"):
        f1_scores(torch.rand(1, 2), torch.tensor([[1, 255]], dtype=torch.uint8))
