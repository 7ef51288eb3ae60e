"""Labels: the sparse matrix against plain dense arithmetic."""

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pluralis import compressed_rows
from pluralis import labels as labels_module
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


@given(matrices(), st.sampled_from([1, 3, 8]), st.data())
def test_blocks_change_nothing(dense, block, data):
    """Of a few entries each, so that a block may hold a part of a row, no entry, or several rows."""
    rows = np.array(data.draw(st.lists(st.integers(0, len(dense) - 1), unique=True)), int)
    with pytest.MonkeyPatch.context() as patch:
        for module in (labels_module, compressed_rows):
            patch.setattr(module, "BLOCK", block)
        labels = Labels.from_dense(dense)
        np.testing.assert_array_equal(labels.dense(), dense)
        np.testing.assert_array_equal(labels.select(rows).dense(), dense[rows])
        summary = labels.summary()
    for sign, by_class, by_row in (
        (1, summary.positives, summary.row_positives),
        (-1, summary.negatives, summary.row_negatives),
    ):
        np.testing.assert_array_equal(by_class, (dense == sign).sum(0))
        np.testing.assert_array_equal(by_row, (dense == sign).sum(1))


def test_a_wrong_value_in_a_later_block_is_told_by_its_row(monkeypatch):
    monkeypatch.setattr(labels_module, "BLOCK", 2)
    dense = np.zeros((5, 2))
    dense[3, 1] = 7
    with pytest.raises(LabelError, match=r"row 3, class 1: the value 7\.0 means nothing"):
        Labels.from_dense(dense)
    with pytest.raises(LabelError, match=r"row 'd', class 'y'"):
        Labels.from_dense(dense, ["x", "y"], list("abcde"))


@pytest.mark.parametrize("width", [80, 300, 70_000])
def test_class_numbers_of_any_size(width):
    last = np.full((1, width), -1, np.int8)
    last[0, [0, 255, 256, 65_535, 65_536, width - 1][:: 1 if width > 65_536 else 5]] = 1
    np.testing.assert_array_equal(Labels.from_dense(last).dense(), last)


def test_complete_labels_take_little_more_than_their_own_memory(monkeypatch):
    """5 bytes a label, 1 or 2 more while they are gathered, and a part that is looked at."""
    for module in (labels_module, compressed_rows):
        monkeypatch.setattr(module, "BLOCK", 1 << 16)
    dense = np.full((50_000, 80), -1, np.int8)
    dense[np.arange(len(dense)), np.arange(len(dense)) % 80] = 1
    own = 5 * dense.size
    order = np.random.default_rng(0).permutation(len(dense))
    peaks = []
    labels = Labels.from_dense(dense)
    for call in (lambda: Labels.from_dense(dense), lambda: labels.select(order), labels.dense, labels.summary):
        tracemalloc.start()
        call()
        peaks.append(tracemalloc.get_traced_memory()[1] / own)
        tracemalloc.stop()
    block = 64 * compressed_rows.BLOCK / own
    names = 200 * len(dense) / own  # ids and a set of them
    made, selected, unpacked, counted = peaks
    assert made < 1.6 + block
    assert selected < 1.2 + block + names
    assert unpacked < 0.2 + block
    assert counted < block + names


def test_arrays_that_are_given_away_are_not_copied():
    arrays = np.array([0, 2, 3]), np.array([0, 2, 1], np.int32), np.array([1, -1, 1], np.int8)
    kept, given = Labels(*arrays, 3), Labels(*arrays, 3, copy=False)
    for name, array in zip(("indptr", "indices", "values"), arrays, strict=True):
        assert not np.shares_memory(getattr(kept, name), array)
        assert np.shares_memory(getattr(given, name), array)
        assert not getattr(given, name).flags.writeable
    assert kept == given == Labels([0, 2, 3], [0, 2, 1], [1, -1, 1], 3, copy=False)


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
        (lambda: Labels([0, 1], [0], [0], 2), "1 or -1"),
        (lambda: Labels([0, 1], [0], [-2], 2), "1 or -1"),
        (lambda: Labels([0, 1], [-1], [1], 2), "between 0 and 1"),
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
