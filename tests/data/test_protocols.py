"""The published protocols against a literal restatement of them on dense arrays."""

import numpy as np
import pytest

from pluralis.data import protocols
from pluralis.data.protocols import (
    drop_positives,
    fixed_per_class,
    flip_positives,
    known_ratio,
    pick,
    single_positive,
    split,
)
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels


def restated(full, seed):
    """Complete labels [N, C] of 1 and 0 to observed labels of 1 and 0, step by step as it was published."""
    rng = np.random.RandomState(seed)
    observed = np.zeros_like(full)
    for i in range(full.shape[0]):
        there = [c for c in range(full.shape[1]) if full[i, c] == 1]
        not_there = [c for c in range(full.shape[1]) if full[i, c] == 0]
        rng.shuffle(there)
        rng.shuffle(not_there)
        for c in there[:1]:
            observed[i, c] = 1
    return observed


@pytest.mark.parametrize("seed", [1200, 0, 7])
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
def test_single_positive_is_the_published_draw(seed, density):
    full = (np.random.default_rng(3).random((200, 20)) < density).astype(int)
    ids = [f"image {i}" for i in range(200)]
    labels = Labels.from_dense(full, ids=ids, convention="complete")
    observed = single_positive(labels, seed)
    np.testing.assert_array_equal(observed.dense(), restated(full, seed))
    assert observed.ids == tuple(ids)
    summary = observed.summary()
    assert summary.negatives.sum() == 0
    np.testing.assert_array_equal(summary.row_positives, full.any(1))


def test_single_positive_wants_complete_labels():
    labels = Labels.from_dense([[1, -1], [1, 0]], classes=["cat", "dog"], ids=["a", "b"])
    with pytest.raises(LabelError, match="row 'b', class 'dog' is unknown"):
        single_positive(labels)


@pytest.mark.parametrize("draws", [1 << 20, 7])
@pytest.mark.parametrize(("ratio", "seed"), [(0.1, 0), (0.5, 0), (0.9, 3), (0.0, 0), (1.0, 0)])
def test_known_ratio_is_one_matrix_of_uniform_numbers(monkeypatch, ratio, seed, draws):
    monkeypatch.setattr(protocols, "_DRAWS", draws)  # so that blocks end within rows
    full = np.where(np.random.default_rng(3).random((60, 20)) < 0.2, 1, -1)
    ids = [f"image {i}" for i in range(60)]
    observed = known_ratio(Labels.from_dense(full, ids=ids), ratio, seed)
    np.random.seed(seed)  # noqa: NPY002 - as the published code does it
    mask = np.random.rand(60, 20) < ratio  # noqa: NPY002
    np.testing.assert_array_equal(observed.dense(), full * mask)
    assert observed.ids == tuple(ids)


@pytest.mark.parametrize("draws", [1 << 20, 5])
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_drop_positives(monkeypatch, rate, draws):
    monkeypatch.setattr(protocols, "_DRAWS", draws)
    full = np.where(np.random.default_rng(3).random((300, 20)) < 0.2, 1, -1)
    full[7] = -1
    observed = drop_positives(Labels.from_dense(full), rate, seed=5).dense()
    rng = np.random.RandomState(5)
    expected = np.zeros_like(full)
    for row, column in zip(*np.nonzero(full == 1), strict=True):
        expected[row, column] = rng.random_sample() >= rate
    np.testing.assert_array_equal(observed, expected)
    left = (observed == 1).sum() / (full == 1).sum()
    assert left == pytest.approx(1 - rate, abs=0.05)


def test_a_smaller_share_is_part_of_a_larger_one():
    labels = Labels.from_dense(np.where(np.random.default_rng(3).random((50, 20)) < 0.2, 1, -1))
    for few, many in (
        (known_ratio(labels, 0.1), known_ratio(labels, 0.3)),
        (drop_positives(labels, 0.75), drop_positives(labels, 0.25)),
    ):
        few, many = few.dense(), many.dense()
        assert (few[few != 0] == many[few != 0]).all()
        assert (few != 0).sum() < (many != 0).sum()


@pytest.mark.parametrize("protocol", [known_ratio, drop_positives])
def test_share_protocols_refuse(protocol):
    with pytest.raises(LabelError, match="row 'b', class 'dog' is unknown"):
        protocol(Labels.from_dense([[1, -1], [1, 0]], classes=["cat", "dog"], ids=["a", "b"]), 0.5)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(DataError, match="from 0 to 1"):
            protocol(Labels.from_dense([[1, -1]]), share)
    assert len(protocol(Labels.from_lists([], 3), 0.5)) == 0


@pytest.mark.parametrize("seed", [-1, 2**32, 2**40, 1.5, "7", None, True])
def test_seeds_that_are_none(seed):
    labels = Labels.from_dense([[1, -1]])
    for draw in (
        lambda: single_positive(labels, seed),
        lambda: pick(labels, [1.0, 1.0], seed),
        lambda: known_ratio(labels, 0.5, seed),
        lambda: drop_positives(labels, 0.5, seed),
        lambda: fixed_per_class(labels, 1, seed),
        lambda: flip_positives(labels, 0.5, seed),
        lambda: split(10, 0.2, seed),
    ):
        with pytest.raises(DataError, match="the seed .* is not possible; give a whole number from 0 to 4294967295"):
            draw()


def test_numbers_of_numpy_are_numbers():
    labels = Labels.from_dense(np.where(np.random.default_rng(3).random((30, 5)) < 0.3, 1, -1))
    assert fixed_per_class(labels, np.int64(3), np.uint32(7)) == fixed_per_class(labels, 3, 7)
    assert known_ratio(labels, np.float32(0.5)) == known_ratio(labels, 0.5)
    assert split(np.int32(10), np.float64(0.2))[1].tolist() == split(10, 0.2)[1].tolist()
    for draw in (known_ratio, drop_positives, flip_positives):
        with pytest.raises(DataError, match="'0.5' is not possible; give a number from 0 to 1"):
            draw(labels, "0.5")
    for given in ((10, "0.2"), ("10", 0.2), (1.5, 0.2)):
        with pytest.raises(DataError, match="give a fraction"):
            split(*given)
    for count in ("3", 1.5, np.float64(3), True, -1):
        with pytest.raises(DataError, match="the count .* is not possible"):
            fixed_per_class(labels, count)


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 7, 13, 5717])
@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_split_is_the_published_draw(rows, fraction):
    held_out = int(np.round(fraction * rows))
    order = np.random.RandomState(1200).permutation(rows)
    train, val = split(rows, fraction)
    assert train.tolist() == sorted(order[: rows - held_out].tolist())
    assert val.tolist() == (sorted(order[-held_out:].tolist()) if held_out else [])
    assert sorted([*train, *val]) == list(range(rows))


def test_split_without_validation():
    train, val = split(10, 0)
    assert train.tolist() == list(range(10))
    assert val.tolist() == []


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_split_fraction_out_of_range(fraction):
    with pytest.raises(DataError, match="between 0 and 1"):
        split(10, fraction)
