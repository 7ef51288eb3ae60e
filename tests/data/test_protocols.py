"""The published protocols against a literal restatement of them on dense arrays."""

import numpy as np
import pytest

from pluralis.data.protocols import single_positive, split
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
