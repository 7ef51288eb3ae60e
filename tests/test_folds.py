"""Predictions out of fold: every row by a model that did not see it, and labels that keep their meaning."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import KFold, ShuffleSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pluralis import folds
from pluralis.estimator import PartialLabelClassifier
from pluralis.folds import out_of_fold

X = np.random.default_rng(0).normal(size=(90, 4))
TRUTH = np.where(X[:, :3] > 0, 1, -1)
GIVEN = np.where(np.random.default_rng(1).random(TRUTH.shape) < 0.5, TRUTH, 0)
MODEL = PartialLabelClassifier("bce", epochs=2, min_steps=0, lr=0.02, validation_fraction=0, random_state=0)


@pytest.mark.parametrize("method", ["predict_proba", "decision_function", "predict"])
def test_it_is_the_loop_written_out(method: str) -> None:
    cv = KFold(3, shuffle=True, random_state=4)
    expected = np.zeros(TRUTH.shape)
    for train, test in cv.split(X):
        expected[test] = getattr(MODEL.fit(X[train], GIVEN[train]), method)(X[test])
    for labels in (GIVEN, sparse.coo_array(GIVEN), GIVEN.tolist()):
        assert np.array_equal(out_of_fold(MODEL, X, labels, cv, method), expected)


def test_labels_keep_their_meaning() -> None:
    ours = out_of_fold(MODEL, X, TRUTH, cv=3)
    assert np.array_equal(ours, out_of_fold(MODEL, X, TRUTH > 0, cv=3))
    theirs = cross_val_predict(MODEL, X, TRUTH, cv=3, method="predict_proba")
    assert np.array_equal(theirs, out_of_fold(MODEL, X, (TRUTH > 0).astype(int), cv=3))  # -1 has become 0, unknown
    assert not np.allclose(theirs, ours, atol=0.01)
    with pytest.raises(ValueError, match="out_of_fold"):
        cross_val_predict(MODEL, X, GIVEN, cv=3, method="predict_proba")


def test_pipelines_and_lists() -> None:
    assert out_of_fold(make_pipeline(StandardScaler(), MODEL), X, GIVEN, cv=3).shape == (90, 3)
    assert out_of_fold(MODEL, X, TRUTH[:, 0], cv=3).shape == (90, 2)
    assert set(out_of_fold(MODEL, X, TRUTH[:, 0], cv=3, method="predict")) == {-1, 1}


def test_rows_that_are_left_out_never_or_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="every row out once"):
        out_of_fold(MODEL, X, GIVEN, ShuffleSplit(2, random_state=0))


def test_examples() -> None:
    found = doctest.testmod(folds)
    assert found.attempted
    assert not found.failed
