"""Compressed rows of labels: as dense ones say, and in the memory of one copy."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pluralis.compressed_rows import CompressedRows


@pytest.mark.parametrize("width", [3, 300, 70_000])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_come_back(width: int, reverse: bool) -> None:
    random = np.random.default_rng(0)
    columns = np.sort(random.choice(width, 3, replace=False))
    signed = random.integers(-1, 2, (20, 3)).astype(np.int8)
    rows = CompressedRows(width)
    rows.add(signed[:7], columns)
    rows.add(signed[7:], columns)
    order = np.arange(20)[::-1] if reverse else None
    indptr, indices, values = rows.arrays(order)
    assert (indptr.dtype, indices.dtype, values.dtype) == (np.int64, np.int32, np.int8)
    for row, expected in enumerate(signed[::-1] if reverse else signed):
        known = slice(indptr[row], indptr[row + 1])
        assert indices[known].tolist() == columns[expected != 0].tolist()
        assert values[known].tolist() == expected[expected != 0].tolist()


def test_what_was_gathered_is_not_copied() -> None:
    """With classes enough for numbers that are kept as they are given out."""
    rows = CompressedRows(70_000)
    rows.add(np.ones((10, 50_000), np.int8), np.arange(50_000))
    tracemalloc.start()
    arrays = rows.arrays()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(array.nbytes for array in arrays) > 2_000_000
    assert peak < 10_000
