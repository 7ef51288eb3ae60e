"""Labels as users of scikit-learn hold them: types and names are looked at before anything is made of the values."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from pluralis import label_input
from pluralis.estimator import PartialLabelClassifier, observed_score
from pluralis.label_input import read_labels, take_labels

X = np.random.default_rng(0).normal(size=(40, 4))
Y = np.where(X[:, :3] > 0, 1, -1)
Y[np.random.default_rng(1).random(Y.shape) < 0.4] = 0
NAMES = ["cat", "dog", "car"]


class Missing:
    """As pandas' NA: it is equal to nothing, and says neither yes nor no."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


Missing.__name__ = "NAType"


class Frame:
    """As much of a data frame as labels need: named columns, each of a type of its own."""

    def __init__(self, parts: list[Any], names: list[str] | None = None) -> None:
        self.columns = NAMES if names is None else names
        self._parts = [np.asarray(part) for part in parts]

    def __getitem__(self, name: str) -> np.ndarray:
        return self._parts[self.columns.index(name)]

    def __len__(self) -> int:
        return len(self._parts[0])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self._parts)


def columns(values: np.ndarray, kind: Any = None) -> list[np.ndarray]:
    return [part if kind is None else part.astype(kind) for part in values.T]


def model() -> PartialLabelClassifier:
    return PartialLabelClassifier("bce", epochs=1, min_steps=0, validation_fraction=0, random_state=0)


@pytest.mark.parametrize("kind", [np.int8, np.float64, object])
def test_frames_of_numbers_are_the_same_as_arrays(kind: Any) -> None:
    given = take_labels(Frame(columns(Y, kind)))
    assert given.names is not None
    assert given.names.tolist() == NAMES
    assert read_labels(given.values) == read_labels(Y)


@pytest.mark.parametrize("kind", [bool, object])
def test_frames_of_bools_say_that_all_is_known(kind: Any) -> None:
    given = take_labels(Frame(columns(Y > 0, kind)))
    assert np.array_equal(read_labels(given.values).dense(), np.where(Y > 0, 1, -1))


def test_lists_of_objects() -> None:
    for plain in ([[True, False]], [[1, 0, -1]], [[1.0, 0.0]], np.array([[1, -1]], object)):
        expected = np.where(np.array(plain), 1, -1) if isinstance(plain[0][0], bool) else np.array(plain, float)
        assert np.array_equal(read_labels(take_labels(plain).values).dense(), expected)
    kept = sparse.csr_array(Y)
    assert take_labels(kept).values is kept
    assert take_labels(None).values is None


BOOLS = columns(Y > 0)


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        (Frame([BOOLS[0], *columns(Y)[1:]]), "column 'cat' holds True and False.*column 'dog'.*write all of them"),
        (Frame([np.array([True, 1, 0], object)], ["cat"]), "column 'cat' holds True and False, and numbers"),
        (Frame(columns(np.where(Y == 0, np.nan, Y))), "column 'cat' contains NaN.*write 0 for unknown"),
        (Frame([np.array([1, None, 0], object)], ["cat"]), "missing value.*write 0 for unknown"),
        (Frame([np.array([1, Missing(), 0], object)], ["cat"]), "missing value.*write 0 for unknown"),
        (Frame(columns(Y), ["cat", "dog", "cat"]), "several columns that are named 'cat'"),
        (Frame([["1", "-1", "0"]], ["cat"]), "column 'cat' holds the text '1'"),
        (Frame([np.array(["1", "-1"], object)], ["cat"]), "column 'cat' holds the text '1'"),
        (np.where(Y == 0, np.nan, Y), "y contains NaN.*write 0 for unknown"),
        ([[1, None]], "y holds a missing value"),
        (["cat", "dog"], "y holds the text 'cat'"),
    ],
)
def test_what_cannot_be_read_is_said(labels: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        take_labels(labels)
    if hasattr(labels, "shape") and len(labels) == len(X):
        with pytest.raises(ValueError, match=part):
            model().fit(X, labels)


def test_scores_are_of_the_columns_that_were_fitted() -> None:
    fitted = model().fit(X, Frame(columns(Y)))
    assert fitted.classes_.tolist() == NAMES
    assert fitted.score(X, Frame(columns(Y))) == fitted.score(X, Y)
    for names in (["dog", "cat", "car"], ["cat", "dog", "cow"]):
        for measure in (fitted.score, lambda X, y: observed_score(fitted, X, y)):
            with pytest.raises(ValueError, match=r"y's column .* but the model was fitted with"):
                measure(X, Frame(columns(Y), names))
    unnamed = model().fit(X, Y)
    assert unnamed.score(X, Frame(columns(Y))) == fitted.score(X, Y)


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(Y, columns=NAMES)
    for kind in ("int8", "Int8", "float64", "category", object):
        assert read_labels(take_labels(frame.astype(kind)).values) == read_labels(Y)
    for kind in ("bool", "boolean"):
        assert read_labels(take_labels((frame > 0).astype(kind)).values) == read_labels(Y > 0)
    for wrong in (
        frame.where(frame != 0),
        frame.where(frame != 0).astype("Int8"),
        (frame > 0).astype("boolean").where(frame != 0),
    ):
        with pytest.raises(ValueError, match="write 0 for unknown"):
            model().fit(X, wrong)
    with pytest.raises(ValueError, match="holds True and False"):
        model().fit(X, frame.assign(dog=frame["dog"] > 0))
    with pytest.raises(ValueError, match="fitted with"):
        model().fit(X, frame).score(X, frame[["car", "dog", "cat"]])


def test_examples() -> None:
    found = doctest.testmod(label_input)
    assert found.attempted
    assert not found.failed
