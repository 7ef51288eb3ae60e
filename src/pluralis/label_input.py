"""Labels as users of scikit-learn hold them: arrays, lists, sparse matrices and data frames, read without a guess."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.utils.multiclass import type_of_target

from pluralis.labels import Labels

_MEANING = "a label is 1 present, 0 unknown or -1 absent"


class GivenLabels(NamedTuple):
    """Labels as plain values, before they are checked against features, and the names of their columns."""

    values: Any  # an array, or a sparse matrix as it came; None as it came
    names: npt.NDArray[Any] | None


def take_labels(y: Any) -> GivenLabels:
    """Values and column names of y; a frame is read column by column, since types may differ between them.

    >>> take_labels([[True, False]]).values.dtype, take_labels([1, 0, -1]).values.dtype
    (dtype('bool'), dtype('int64'))
    """
    if y is None or issparse(y):
        return GivenLabels(y, None)
    columns = getattr(y, "columns", None)
    if columns is None:
        return GivenLabels(_plain(np.asarray(y), "y"), None)
    names = list(columns)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"y has several columns that are named {twice[0]!r}: give every class a name of its own")
    if not names or not hasattr(y, "__getitem__"):
        return GivenLabels(_plain(np.asarray(y), "y"), np.asarray(columns))
    parts = [_plain(np.asarray(y[name]), f"y's column {name!r}") for name in names]
    flags = [part.dtype == bool for part in parts]
    if any(flags) and not all(flags):
        raise ValueError(
            f"y's column {names[flags.index(True)]!r} holds True and False, where False means absent, and the column"
            f" {names[flags.index(False)]!r} numbers, where 0 means unknown: write all of them as 1, 0 and -1"
        )
    return GivenLabels(np.stack(parts, 1), np.asarray(columns))


def read_labels(y: Any) -> Labels:
    """Labels from {+1, 0, -1}, from a sparse matrix (not stored is unknown), or from bools (all known)."""
    sparse = issparse(y)
    values = y.data if sparse else y
    if not sparse and (kind := type_of_target(y, input_name="y", raise_unknown=True)).startswith("continuous"):
        raise ValueError(f"y is {kind}; {_MEANING}")
    if len(wrong := np.setdiff1d(values, (-1, 0, 1))):
        raise ValueError(
            f"Only binary classification is supported: {_MEANING}, but y holds {wrong[0]}; give a column for each class"
            " (cross_val_predict numbers labels anew before they get here: use pluralis.folds.out_of_fold)"
        )
    if not sparse:
        return Labels.from_dense(y.reshape(len(y), -1), convention="complete" if y.dtype == bool else "signed")
    entries = y.tocoo()
    return Labels.from_entries(
        entries.row.astype(np.int64), entries.col.astype(np.int64), values.astype(np.int64), y.shape
    )


def check_names(given: GivenLabels, classes: Any) -> None:
    """Refuse columns that are not those a model was fitted with; one that was fitted without names takes any."""
    if given.names is None or classes is None or len(given.names) != len(classes):
        return
    named, fitted = list(given.names), list(classes)
    if named != fitted and fitted != list(range(len(fitted))):
        at = next(i for i, pair in enumerate(zip(named, fitted, strict=True)) if pair[0] != pair[1])
        raise ValueError(
            f"y's column {at} is {named[at]!r}, but the model was fitted with {fitted[at]!r} there:"
            " give the same columns in the same order, y[list(model.classes_)]"
        )


def _plain(values: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Bools or numbers; what is missing, or is no number, is an error that says so."""
    if values.dtype.kind == "O":
        flat = values.ravel().tolist()
        if any(map(_missing, flat)):
            raise ValueError(f"{where} holds a missing value; {_MEANING}: write 0 for unknown")
        kinds = {isinstance(value, bool | np.bool_) for value in flat}
        if len(kinds) > 1:
            raise ValueError(f"{where} holds True and False, and numbers: write all of them as 1, 0 and -1")
        if flat and all(isinstance(value, bool | int | float | np.generic) for value in flat):
            values = np.array(flat).reshape(values.shape)
    if values.dtype.kind in "USO" and values.size and isinstance(first := values.ravel()[0], str | bytes):
        raise ValueError(
            f"{where} holds the text {str(first)!r}; {_MEANING}: write numbers, and a column for each class"
        )
    if values.dtype.kind == "f" and bool(np.isnan(values).any()):
        raise ValueError(f"Input {where} contains NaN; {_MEANING}: write 0 for unknown")
    return values


def _missing(value: Any) -> bool:
    """None, NaN, and pandas' own, which is equal to nothing and says neither yes nor no."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
