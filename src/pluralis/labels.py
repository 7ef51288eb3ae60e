"""The labels of a data set: rows × classes of +1 present, -1 absent and 0 unknown, stored sparsely."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.compressed_rows import BLOCK, CompressedRows, blocks, offsets, take_rows
from pluralis.conventions import CONVENTIONS, as_matrix, to_signed
from pluralis.errors import LabelError, shown
from pluralis.label_summary import LabelSummary

__all__ = ["CONVENTIONS", "LabelSummary", "Labels"]

Ints = npt.NDArray[np.int64]


class Labels:
    """A matrix of labels in compressed rows; an unknown label takes no memory.

    The labels of row r are `values[indptr[r]:indptr[r + 1]]` (int8, +1 or -1) for the classes
    `indices[indptr[r]:indptr[r + 1]]` (int32, ascending). The arrays are
    read-only copies, or with `copy=False` those given where they have these types: nobody may write to them then.
    `row_ids` holds the unique names of the rows, or None where a row is named by its number.
    Use a `from_…` constructor, unless you have the three arrays already.

    >>> labels = Labels.from_lists([[0], [2]], ["cat", "dog", "car"], negatives=[[1], []])
    >>> labels.dense().tolist()
    [[1, -1, 0], [0, 0, 1]]
    >>> labels == Labels.from_dense([[1, -1, 0], [0, 0, 1]], ["cat", "dog", "car"])
    True
    """

    def __init__(
        self,
        indptr: npt.ArrayLike,
        indices: npt.ArrayLike,
        values: npt.ArrayLike,
        classes: int | Sequence[str],
        ids: Sequence[str] | None = None,
        copy: bool = True,
    ) -> None:
        self.classes = _class_names(classes)
        self.row_ids = None if ids is None else _names(ids, "row id")
        ends, columns, signs = _whole(indptr, "indptr"), _listed(indices, "indices"), _listed(values, "values")
        _check_rows(ends, columns, signs, len(self.classes))
        if self.row_ids is not None and len(self.row_ids) != len(ends) - 1:
            raise LabelError(f"{len(self.row_ids)} row ids for {len(ends) - 1} rows: give one each")
        self.indptr: Ints = ends.astype(np.int64, copy=copy)
        self.indices: npt.NDArray[np.int32] = columns.astype(np.int32, copy=copy)
        self.values: npt.NDArray[np.int8] = signs.astype(np.int8, copy=copy)
        for array in (self.indptr, self.indices, self.values):
            array.flags.writeable = False

    @classmethod
    def from_dense(
        cls,
        array: Any,
        classes: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        convention: str = "signed",
    ) -> Labels:
        """Labels from an array, tensor or nested list [N, C] whose numbers follow one of CONVENTIONS."""
        dense = as_matrix(array)
        height, width = dense.shape
        _check_counts(dense.shape, classes, ids)
        names = range(height) if ids is None else ids
        rows, every, step = CompressedRows(width), np.arange(width), max(1, BLOCK // max(1, width))
        for first in range(0, max(1, height), step):  # once also without any row, for the convention's name
            part = slice(first, first + step)
            rows.add(to_signed(dense[part], convention, classes, names[part]), every)
        return cls(*rows.arrays(), width if classes is None else classes, ids, copy=False)

    @classmethod
    def from_lists(
        cls,
        positives: Sequence[Sequence[int]],
        classes: int | Sequence[str],
        negatives: Sequence[Sequence[int]] | None = None,
        ids: Sequence[str] | None = None,
    ) -> Labels:
        """Labels from the class numbers present (and absent) in each row; all others are unknown."""
        if negatives is not None and len(negatives) != len(positives):
            raise LabelError(f"{len(positives)} rows of positives but {len(negatives)} of negatives")
        rows, columns, values = [], [], []
        for lists, label in ((positives, 1), ([] if negatives is None else negatives, -1)):
            counts = np.fromiter(map(len, lists), np.int64, len(lists))
            try:
                flat = np.fromiter(map(operator.index, chain.from_iterable(lists)), np.int64, counts.sum())
            except (TypeError, OverflowError) as error:
                raise LabelError(f"class numbers must be whole numbers: {error}") from None
            rows.append(np.repeat(np.arange(len(lists)), counts))
            columns.append(flat)
            values.append(np.full(len(flat), label))
        names = _class_names(classes)
        row, column, value = (np.concatenate(parts) for parts in (rows, columns, values))
        return cls.from_entries(row, column, value, (len(positives), len(names)), names, ids)

    @classmethod
    def from_entries(
        cls,
        rows: npt.ArrayLike,
        columns: npt.ArrayLike,
        values: npt.ArrayLike,
        shape: tuple[int, ...],
        classes: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
    ) -> Labels:
        """Labels from arrays [K] of row number, class number and +1, -1 or 0; any order, no pair twice."""
        height, width = shape
        row, column, value = _whole(rows, "rows"), _whole(columns, "columns"), _whole(values, "values")
        if not len(row) == len(column) == len(value):
            raise LabelError(f"{len(row)} rows, {len(column)} columns and {len(value)} values do not match")
        _check_counts(shape, classes, ids)

        def where(entry: int) -> str:
            r, c = int(row[entry]), int(column[entry])
            row_id = ids[r] if ids is not None and 0 <= r < height else str(r)
            name = classes[c] if classes is not None and 0 <= c < width else str(c)
            return f"row {shown(row_id)}, class {shown(name)}"

        for wrong, why in (
            ((row < 0) | (row >= height), f"there are {height} rows"),
            ((column < 0) | (column >= width), f"there are {width} classes"),
            ((value < -1) | (value > 1), "a label is 1, -1 or 0"),
        ):
            if wrong.any():
                entry = int(np.argmax(wrong))
                raise LabelError(f"{where(entry)}, value {value[entry]}: out of range, {why}")
        key = row * width + column
        order = np.argsort(key, kind="stable")
        again = np.flatnonzero(np.diff(key[order]) == 0)
        if len(again):
            first, second = int(value[order[again[0]]]), int(value[order[again[0] + 1]])
            what = f"given twice as {first}" if first == second else f"given as {first} and as {second}"
            raise LabelError(f"{where(int(order[again[0]]))}: {what}; keep one of the two")
        order = order[value[order] != 0]
        counts = np.bincount(row[order], minlength=height)
        return cls(offsets(counts), column[order], value[order], width if classes is None else classes, ids)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, classes)."""
        return len(self), len(self.classes)

    @property
    def ids(self) -> tuple[str, ...]:
        """The name of every row; made afresh where rows are named by their number."""
        return tuple(map(str, range(len(self)))) if self.row_ids is None else self.row_ids

    def id(self, row: int) -> str:
        """The name of one row."""
        at = int(self._rows([row])[0])
        return str(at) if self.row_ids is None else self.row_ids[at]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Labels):
            return NotImplemented
        same = (np.array_equal(getattr(self, a), getattr(other, a)) for a in ("indptr", "indices", "values"))
        same_ids = self.row_ids == other.row_ids or self.ids == other.ids
        return self.classes == other.classes and same_ids and all(same)

    def __repr__(self) -> str:
        present = int(np.count_nonzero(self.values > 0))
        absent = len(self.values) - present
        return f"Labels({len(self)} rows × {len(self.classes)} classes, {present} present, {absent} absent)"

    def dense(self, rows: npt.ArrayLike | None = None) -> npt.NDArray[np.int8]:
        """The labels of `rows` (None: all) as int8 [n, C] in {+1, 0, -1}; rows may repeat."""
        chosen = np.arange(len(self)) if rows is None else self._rows(rows)
        out = np.zeros((len(chosen), len(self.classes)), np.int8)
        for at, _, entries in blocks(self.indptr, chosen):
            out[at, self.indices[entries]] = self.values[entries]
        return out

    def select(self, rows: npt.ArrayLike) -> Labels:
        """The labels and ids of `rows` in that order; no row twice, since ids are unique."""
        chosen = self._rows(rows)
        names = map(str, chosen) if self.row_ids is None else (self.row_ids[r] for r in chosen)
        arrays = take_rows(self.indptr, self.indices, self.values, chosen)
        return Labels(*arrays, self.classes, tuple(names), copy=False)

    def with_blank_rows(self, ids: Sequence[str]) -> Labels:
        """The same with further rows, of these ids, of which nothing is known.

        >>> Labels.from_lists([[0]], ["cat", "dog"], ids=["a.jpg"]).with_blank_rows(["b.jpg"]).dense().tolist()
        [[1, 0], [0, 0]]
        """
        ends = np.concatenate([self.indptr, np.full(len(ids), self.indptr[-1])])
        return Labels(ends, self.indices, self.values, self.classes, (*self.ids, *ids), copy=False)

    def positives(self, row: int) -> npt.NDArray[np.int32]:
        """The numbers of the classes present in one row, ascending."""
        entries = self._entries(row)
        return self.indices[entries][self.values[entries] > 0]

    def negatives(self, row: int) -> npt.NDArray[np.int32]:
        """The numbers of the classes absent from one row, ascending."""
        entries = self._entries(row)
        return self.indices[entries][self.values[entries] < 0]

    def entries(self) -> tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.int8]]:
        """Row numbers, class numbers and values [K] of the known labels, by row and then by class."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices, self.values

    def summary(self) -> LabelSummary:
        """Counts by class and by row."""
        height, width = self.shape
        by_class, by_row = np.zeros((2, width), np.int64), np.zeros((2, height), np.int64)  # positives and negatives
        for at, place, _ in blocks(self.indptr, np.arange(height)):
            for sign, classes, rows in zip((1, -1), by_class, by_row, strict=True):
                hit = self.values[place] == sign
                classes += np.bincount(self.indices[place][hit], minlength=width)
                first, last = (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)
                rows[first:last] += np.bincount(at[hit] - first, minlength=last - first)
        (positives, negatives), (row_positives, row_negatives) = by_class, by_row
        return LabelSummary(
            classes=self.classes,
            positives=positives,
            negatives=negatives,
            unknown=height - positives - negatives,
            row_positives=row_positives,
            row_negatives=row_negatives,
        )

    def _rows(self, rows: npt.ArrayLike) -> Ints:
        chosen = _whole(rows, "rows")
        wrong = (chosen < 0) | (chosen >= len(self))
        if wrong.any():  # a negative number would quietly count from the end
            raise LabelError(f"there is no row {chosen[np.argmax(wrong)]}; rows go from 0 to {len(self) - 1}")
        return chosen

    def _entries(self, row: int) -> slice:
        """Where the labels of one row are."""
        at = int(self._rows([row])[0])
        return slice(int(self.indptr[at]), int(self.indptr[at + 1]))


def _check_rows(indptr: Ints, indices: npt.NDArray[Any], values: npt.NDArray[Any], width: int) -> None:
    """Raise unless the three arrays are compressed rows as `Labels` describes them."""
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise LabelError("indptr must begin with 0, never fall, and end with the number of entries")
    signs = not len(values) or (values.min() >= -1 and values.max() <= 1 and np.count_nonzero(values) == len(values))
    if len(values) != len(indices) or not signs:
        raise LabelError("values must hold a 1 or -1 for each class number in indices")
    ascending = np.ones(len(indices), bool)
    np.greater(indices[1:], indices[:-1], out=ascending[1:])
    ascending[indptr[indptr < len(indices)]] = True  # the first entry of a row follows nothing
    if len(indices) and not (ascending.all() and indices.min() >= 0 and indices.max() < width):
        raise LabelError(f"the class numbers of a row must ascend and lie between 0 and {width - 1}")


def _check_counts(shape: tuple[int, ...], classes: Sequence[str] | None, ids: Sequence[str] | None) -> None:
    for names, count, what in ((classes, shape[1], "class names"), (ids, shape[0], "row ids")):
        if names is not None and len(names) != count:
            raise LabelError(f"{len(names)} {what} for a matrix of shape {tuple(shape)}: give {count}")


def _whole(numbers: npt.ArrayLike, what: str) -> Ints:
    """A list of whole numbers as int64 [n]."""
    return _listed(numbers, what).astype(np.int64, copy=False)


def _listed(numbers: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """A list [n] of whole numbers of any type; a mask or fractions are an error, never rounded."""
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        kind = f"{array.dtype} of shape {array.shape}"
        raise LabelError(f"{what} must be a list of whole numbers, not {kind}; use np.flatnonzero on a mask")
    return array


def _class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(classes, int | np.integer):
        return tuple(map(str, range(classes)))
    return _names(classes, "class name")


def _names(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Unique, non-empty strings."""
    kinds = set(map(type, names))  # a look at each name would take as long as all else for a million rows
    if isinstance(names, str) or not all(issubclass(kind, str) for kind in kinds) or not all(names):
        raise LabelError(f"every {what} must be a text that is not empty; give a list of texts")
    listed = tuple(map(str, names))
    if len(set(listed)) != len(listed):
        twice = Counter(listed).most_common(1)[0][0]
        raise LabelError(f"the {what} {shown(twice)} is used twice; names must be unique")
    return listed
