"""Compressed rows of labels, gathered and taken in blocks: eighty million need little more than their own memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Arrays = tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.int8]]

BLOCK = 1 << 20  # entries that are looked at together


class CompressedRows:
    """Rows of up to `width` classes that come in blocks; their memory grows in place, and no array is made twice."""

    def __init__(self, width: int) -> None:
        self._ends = array("q", [0])
        # The narrowest that holds a class number: rows that are sorted at the end are there twice for a while.
        self._columns = array("B" if width <= 1 << 8 else "H" if width <= 1 << 16 else "i")
        self._values = array("b")

    def add(self, signed: npt.NDArray[np.int8], columns: npt.NDArray[np.integer]) -> None:
        """Add rows [n, k] of 1, -1 and 0 unknown for the classes `columns` [k], which ascend."""
        known = signed != 0
        numbers = np.broadcast_to(columns.astype(self._columns.typecode), signed.shape)
        ends = np.cumsum(np.count_nonzero(known, axis=1)) + self._ends[-1]
        for gathered, new in ((self._ends, ends), (self._columns, numbers[known]), (self._values, signed[known])):
            gathered.frombytes(new.tobytes())

    def arrays(self, order: Ints | None = None) -> Arrays:
        """`indptr`, `indices` and `values` of all rows, or of the rows `order`; nothing can be added afterwards."""
        ends, columns, values = (
            np.frombuffer(gathered, gathered.typecode) for gathered in (self._ends, self._columns, self._values)
        )
        if order is not None:
            return take_rows(ends, columns, values, order)
        return ends, columns.astype(np.int32, copy=False), values


def take_rows(indptr: Ints, indices: npt.NDArray[Any], values: npt.NDArray[np.int8], rows: Ints) -> Arrays:
    """The three arrays of compressed rows for `rows`, in that order."""
    ends = offsets(indptr[rows + 1] - indptr[rows])
    columns, signs = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.int8)
    for _, place, entries in blocks(indptr, rows):
        columns[place], signs[place] = indices[entries], values[entries]
    return ends, columns, signs


def blocks(indptr: Ints, rows: Ints) -> Iterator[tuple[Ints, slice, Ints]]:
    """The entries of `rows`, some rows at a time.

    Each time the place in `rows` of each entry [k], where the block lies among all of these entries, and the places
    [k] of its entries in the compressed rows of `indptr`.
    """
    ends = offsets(indptr[rows + 1] - indptr[rows])
    step = max(1, BLOCK * len(rows) // max(1, int(ends[-1])))
    for first in range(0, len(rows), step):
        chosen = rows[first : first + step]
        begin, end = int(ends[first]), int(ends[first + len(chosen)])
        counts = indptr[chosen + 1] - indptr[chosen]
        shift = indptr[chosen] - ends[first : first + len(chosen)]
        at = np.repeat(np.arange(first, first + len(chosen)), counts)
        yield at, slice(begin, end), np.arange(begin, end) + np.repeat(shift, counts)


def offsets(counts: Ints) -> Ints:
    """Counts [n] to offsets [n + 1], beginning with 0."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
