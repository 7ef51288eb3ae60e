"""Classes that go together: the same pairs in blocks as all at once, in memory that does not grow with the pairs."""

import tracemalloc

import numpy as np
import pytest

from pluralis.data import inspection
from pluralis.data.images import ImageFiles
from pluralis.data.inspection import inspect_data, together
from pluralis.labels import Labels


@pytest.mark.parametrize("block", [1, 30, 1 << 18])
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_pairs_are_the_same_in_any_blocks(monkeypatch, block, count):
    monkeypatch.setattr(inspection, "_BLOCK", block)
    for seed in range(5):
        draw = np.random.default_rng(seed)
        dense = draw.choice([-1, 0, 1], (40, 12), p=[0.2, 0.5, 0.3]).astype(np.int8)
        dense[:, draw.integers(0, 12)] = -1  # a class that is never present
        found = inspect_data(ImageFiles([]), Labels.from_dense(dense), pairs=count, look=False).pairs
        shared = (dense == 1).astype(int).T @ (dense == 1)
        every = sorted((-shared[a, b], a, b) for a in range(12) for b in range(a + 1, 12) if shared[a, b])
        assert [(-pair.together, pair.a, pair.b) for pair in found] == every[:count]


def test_together_is_of_the_classes_that_are_asked_for():
    dense = np.array([[1, 1, -1], [1, 1, 0], [0, 1, 1]])
    assert together(Labels.from_dense(dense), [1, 0]).toarray().tolist() == [[3, 2], [2, 2]]


@pytest.mark.parametrize(("rows", "classes", "known"), [(20_000, 5_000, 20), (50_000, 20_000, 3)])
def test_memory_does_not_grow_with_pairs_or_classes(rows: int, classes: int, known: int) -> None:
    """20 present labels out of 5,000 make three million pairs; 50,000 × 20,000 would be a matrix of a gigabyte."""
    first = np.arange(known) * (classes // known)
    columns = first + np.random.default_rng(0).integers(0, classes // known, (rows, known), np.int32)
    values = np.ones(rows * known, np.int8)
    labels = Labels(np.arange(rows + 1) * known, columns.reshape(-1), values, classes)
    tracemalloc.start()
    found = inspect_data(ImageFiles([]), labels, look=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.pairs) == 20
    assert peak < 64 * 2**20
