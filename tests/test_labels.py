"""Labels: the sparse matrix against plain dense arithmetic."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pluralis.errors import LabelError
from pluralis.labels import CONVENTIONS, Labels

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7)


def matrices(values=(-1, 0, 1)):
    return hnp.arrays(np.int8, SHAPES, elements=st.sampled_from(values))


# The truth, and how each convention writes it, said once more and independently of the code.
WRITTEN = {
    "signed": {1: 1, -1: -1, 0: 0},
    "complete": {1: 1, -1: 0},
    "zero-unknown": {1: 1, 0: 0},
    "minus-unknown": {1: 1, -1: 0, 0: -1},
    "soft-negative": {1: 1, 0: 0},
}


def test_every_convention_is_tested():
    assert set(WRITTEN) == set(CONVENTIONS)


@pytest.mark.parametrize("convention", WRITTEN)
@given(data=st.data())
def test_round_trip_through_each_convention(convention, data):
    truth = data.draw(matrices(tuple(WRITTEN[convention])))
    written = np.vectorize(WRITTEN[convention].get, otypes=[np.float32])(truth)
    for form in (written, written.astype(np.int64), torch.tensor(written), written.tolist()):
        labels = Labels.from_dense(form, convention=convention)
        np.testing.assert_array_equal(labels.dense(), truth)
        assert labels.dense().dtype == np.int8


@given(matrices())
def test_the_three_constructors_agree(dense):
    labels = Labels.from_dense(dense)
    rows, columns = np.nonzero(dense)
    order = np.random.default_rng(0).permutation(len(rows))
    values = dense[rows, columns]
    assert labels == Labels.from_entries(rows[order], columns[order], values[order], dense.shape)
    positives = [np.flatnonzero(row == 1) for row in dense]
    negatives = [list(np.flatnonzero(row == -1)[::-1]) for row in dense]
    assert labels == Labels.from_lists(positives, dense.shape[1], negatives)
    assert labels == Labels(labels.indptr, labels.indices, labels.values, labels.classes)
    again = Labels.from_entries(*labels.entries(), labels.shape)
    assert labels == again
    assert labels == pickle.loads(pickle.dumps(labels))


@given(matrices(), st.data())
def test_select_and_dense_are_indexing(dense, data):
    labels = Labels.from_dense(dense)
    anywhere = st.integers(0, len(dense) - 1)
    repeated = np.array(data.draw(st.lists(anywhere, max_size=12)), int)
    np.testing.assert_array_equal(labels.dense(repeated), dense[repeated])
    rows = data.draw(st.lists(anywhere, unique=True))
    chosen = labels.select(rows)
    np.testing.assert_array_equal(chosen.dense(), dense[np.array(rows, int)])
    assert chosen.ids == tuple(str(r) for r in rows)
    for row in range(len(dense)):
        np.testing.assert_array_equal(labels.positives(row), np.flatnonzero(dense[row] == 1))
        np.testing.assert_array_equal(labels.negatives(row), np.flatnonzero(dense[row] == -1))


@given(matrices())
def test_summary_is_counting(dense):
    summary = Labels.from_dense(dense).summary()
    np.testing.assert_array_equal(summary.positives, (dense == 1).sum(0))
    np.testing.assert_array_equal(summary.negatives, (dense == -1).sum(0))
    np.testing.assert_array_equal(summary.unknown, (dense == 0).sum(0))
    np.testing.assert_array_equal(summary.row_positives, (dense == 1).sum(1))
    np.testing.assert_array_equal(summary.row_negatives, (dense == -1).sum(1))
    np.testing.assert_array_equal(summary.empty_rows, np.flatnonzero((dense == 0).all(1)))
    assert summary.cardinality == pytest.approx((dense == 1).sum(1).mean())
    assert summary.known_ratio == pytest.approx((dense != 0).mean())


def test_summary_as_text():
    text = str(Labels.from_dense([[1, -1, 0], [0, 0, 0]], classes=["cat", "dog", "eel"]).summary())
    assert "2 rows × 3 classes, 33.33% known" in text
    assert "rows without any label: 1 (first: 1)" in text
    assert "cat 1" in text
    assert "2 classes without any" in text


def test_soft_negatives_are_guesses():
    labels = Labels.from_dense([[1.0, -0.25, 0.0, -1.0]], convention="soft-negative")
    np.testing.assert_array_equal(labels.dense(), [[1, 0, 0, 0]])


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 2, 0.5])
def test_a_value_outside_the_convention_is_named(convention, value):
    dense = np.array([[1, 1], [1, value]])
    with pytest.raises(LabelError, match=r"row 'r1', class 'dog'.*minus-unknown") as caught:
        Labels.from_dense(dense, ["cat", "dog"], ["r0", "r1"], convention)
    assert str(dense[1, 1]) in str(caught.value)


@pytest.mark.parametrize(("convention", "value"), [("complete", -1), ("zero-unknown", -1)])
def test_a_sign_of_another_convention_is_refused(convention, value):
    with pytest.raises(LabelError, match="row 0, class 0: the value -1"):
        Labels.from_dense([[value]], convention=convention)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        ([1, 0], "matrix"),
        ([[1, 0], [1]], "matrix"),
        ([["1", "0"]], "numbers"),
        ([[None, 1]], "numbers"),
    ],
)
def test_what_is_not_a_matrix_of_numbers(array, words):
    with pytest.raises(LabelError, match=words):
        Labels.from_dense(array)


def test_an_unknown_convention_lists_the_known_ones():
    with pytest.raises(LabelError, match=r"'cole'.*'complete'"):
        Labels.from_dense([[1]], convention="cole")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (([0, 1, 1], [1, 0, 0], [1, 1, 1]), "row 'b', class 'cat': given twice as 1"),
        (([1, 0, 1], [1, 0, 1], [1, 1, -1]), "row 'b', class 'dog': given as 1 and as -1"),
        (([2], [0], [1]), "row '2', class 'cat'.*2 rows"),
        (([-1], [0], [1]), "row '-1'.*2 rows"),
        (([0], [2], [1]), "row 'a', class '2'.*2 classes"),
        (([0], [1], [3]), "row 'a', class 'dog', value 3"),
        (([0], [1], [257]), "row 'a', class 'dog', value 257"),
        (([0], [1, 0], [1]), "do not match"),
        (([0.0], [1], [1]), "rows must be a list of whole numbers"),
        (([True], [1], [1]), "rows must be a list of whole numbers"),
    ],
)
def test_bad_entries(entries, words):
    with pytest.raises(LabelError, match=words):
        Labels.from_entries(*entries, shape=(2, 2), classes=["cat", "dog"], ids=["a", "b"])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Labels.from_lists([[0, 0]], 2), "row '0', class '0': given twice"),
        (lambda: Labels.from_lists([[0], [1]], 2, [[], [1]]), "row '1', class '1': given as 1 and as -1"),
        (lambda: Labels.from_lists([[0.5]], 2), "whole numbers"),
        (lambda: Labels.from_lists([[0]], 2, []), "1 rows of positives but 0"),
        (lambda: Labels.from_lists([[0]], ["a", "a"]), "'a' is used twice"),
        (lambda: Labels.from_lists([[0]], "ab"), "list of texts"),
        (lambda: Labels.from_lists([[0]], ["a", ""]), "not empty"),
        (lambda: Labels.from_lists([[0]], ["a", 1]), "class name must be a text"),
        (lambda: Labels.from_lists([[0], [0]], 1, ids=["x", None]), "row id must be a text"),
        (lambda: Labels.from_lists([[0], [0]], 1, ids=["x", b"y"]), "row id must be a text"),
        (lambda: Labels.from_lists([[0], [0]], 1, ids=["x", "x"]), "row id 'x' is used twice"),
        (lambda: Labels.from_lists([[0]], 1, ids=["x", "y"]), "2 row ids"),
        (lambda: Labels.from_dense([[1, 0]], classes=["a"]), "1 class names"),
        (lambda: Labels([0, 2], [1, 0], [1, 1], 2), "ascend"),
        (lambda: Labels([0, 1], [2**32], [1], 2), "between 0 and 1"),
        (lambda: Labels([0, 1], [0], [257], 2), "1 or -1"),
        (lambda: Labels([0, 2], [0], [1], 2), "indptr"),
        (lambda: Labels([], [], [], 2), "indptr"),
        (lambda: Labels([0, 1], [0], [1], 2, ids=["a", "b"]), "2 row ids for 1 rows"),
        (lambda: Labels.from_lists([[0], [1]], 2).select([1, 1]), "'1' is used twice"),
        (lambda: Labels.from_lists([[0], [1]], 2).dense([2]), "no row 2"),
        (lambda: Labels.from_lists([[0], [1]], 2).dense([-1]), "no row -1"),
        (lambda: Labels.from_lists([[0], [1]], 2).dense([True, False]), "np.flatnonzero"),
    ],
)
def test_other_mistakes(build, words):
    with pytest.raises(LabelError, match=words):
        build()


def test_names_default_to_numbers_and_are_not_stored():
    labels = Labels.from_lists([[0], [], [2]], 3)
    assert labels.row_ids is None
    assert (labels.classes, labels.ids, labels.id(2)) == (("0", "1", "2"), ("0", "1", "2"), "2")
    assert labels == Labels.from_lists([[0], [], [2]], 3, ids=["0", "1", "2"])
    assert labels != Labels.from_lists([[0], [], [2]], 3, ids=["0", "1", "x"])
    assert labels != Labels.from_lists([[0], [], [2]], ["a", "b", "c"])
    assert labels != Labels.from_lists([[0], [], [1]], 3)
    assert labels != "labels"
    assert repr(labels) == "Labels(3 rows × 3 classes, 2 present, 0 absent)"


def test_the_arrays_are_read_only_copies():
    mine = np.array([1, -1])
    labels = Labels([0, 2], [0, 1], mine, 2)
    mine[0] = -1
    np.testing.assert_array_equal(labels.dense(), [[1, -1]])
    with pytest.raises(ValueError, match="read-only"):
        labels.values[0] = -1
    labels.positives(0)[:] = 7
    np.testing.assert_array_equal(labels.dense(), [[1, -1]])


def test_no_rows_and_no_labels():
    empty = Labels.from_dense(np.zeros((0, 3)))
    assert empty.shape == (0, 3)
    assert empty.dense().shape == (0, 3)
    assert empty.summary().cardinality == 0
    assert empty.summary().known_ratio == 0
    assert "0 rows × 3 classes" in str(empty.summary())
    assert Labels.from_lists([], 2).select([]).shape == (0, 2)
    assert Labels.from_lists([[], []], 2).dense([1, 0]).tolist() == [[0, 0], [0, 0]]
