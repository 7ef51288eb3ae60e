"""Predictions for every row by a model that did not see it, from labels that are handed on as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable


def out_of_fold(model: Any, X: Any, y: Any, cv: Any = 5, method: str = "predict_proba") -> npt.NDArray[np.float64]:
    """Predictions [N, C] for the rows X [N, D]: each by a clone of the model that was fitted to the other folds.

    In the place of scikit-learn's `cross_val_predict`, which numbers the labels of each column anew before it fits: -1
    and 0 then become 0 and 1, so that absent labels are unknown and unknown ones present. `cv` is the number of folds
    or a splitter of scikit-learn's that goes by rows alone, such as KFold; `method` is "predict_proba",
    "decision_function" or "predict".

    >>> from pluralis import PartialLabelClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> out_of_fold(PartialLabelClassifier("bce", random_state=0), X, np.where(X[:, :3] > 0, 1, -1), cv=3).shape
    (60, 3)
    """
    X, y = indexable(X, y)
    splits = list(check_cv(cv).split(X))
    rows = np.concatenate([test for _, test in splits])
    back = np.argsort(rows)
    if not np.array_equal(rows[back], np.arange(X.shape[0] if hasattr(X, "shape") else len(X))):
        raise ValueError("out_of_fold: cv must leave every row out once; give a number of folds, or a KFold")
    found = []
    for train, test in splits:
        fitted = clone(model).fit(_safe_indexing(X, train), _safe_indexing(y, train))
        found.append(getattr(fitted, method)(_safe_indexing(X, test)))
    return np.concatenate(found)[back]
