"""Gathering the labels of a file of any length, entry by entry, for every format that names images and classes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pluralis.compressed_rows import CompressedRows
from pluralis.data.dataset import Dataset
from pluralis.data.formats.folder import finder
from pluralis.data.formats.listing import check_size, refuse_twice
from pluralis.data.image_paths import ImagePaths
from pluralis.errors import DataError, nearest, shown
from pluralis.labels import Labels


class Table:
    """Numbers images and classes as they come, and remembers the line of every label; memory: 17 bytes a label.

    Where a line of the file gives all labels of an image (`new_row`, `add_rows`), it is the line of the row alone.

    `classes` fixes the classes and their order. `unlisted`, "unknown" or "absent", is what a value of 0 means;
    where it is None nobody has said, and a 0 is an error. `unit` is what the file counts in: line or row.
    """

    def __init__(
        self,
        path: str | Path,
        images: str | Path,
        classes: Sequence[str] | None = None,
        unlisted: str | None = None,
        unit: str = "line",
    ) -> None:
        if unlisted not in (None, "unknown", "absent"):
            raise DataError(f"unlisted={unlisted!r} is not possible; choose 'unknown' or 'absent'")
        if classes is not None:
            check_classes(classes)
        self.path, self.unlisted, self.unit = path, unlisted, unit
        self.fixed = classes is not None
        self.classes = {name: number for number, name in enumerate(classes or ())}
        self.rows: dict[str, int] = {}
        self.lines = array("q")  # of each row, the first that names it
        self.folder = finder(images)
        self.entries = array("i"), array("i"), array("b"), array("q")  # row, class, value and line of each label
        self.whole: CompressedRows | None = None  # rows that were given as a whole
        self.blank = 0  # cells in them that say nothing

    def row(self, name: str, line: int) -> int:
        """The number of an image, new or known; the same file under two spellings is one image.

        A name that no file can have is refused here; `dataset` looks at the files of all others together.
        """
        row = self.rows.get(name)
        if row is None:
            try:
                usual = self.folder.usual(name)
            except DataError as error:
                raise self.error(line, str(error)) from None
            row = self.rows.setdefault(usual, len(self.lines))
            if row == len(self.lines):
                self.lines.append(line)
        return row

    def new_row(self, name: str, line: int) -> None:
        """Number an image whose labels come with `add_rows`; it must be new."""
        count = len(self.lines)
        row = self.row(name, line)
        if row < count:
            known = f"is in {self.unit} {self.lines[row]} already; keep one of them"
            raise self.error(line, f"image {shown(name)} {known}")

    def column(self, name: str, line: int) -> int:
        """The number of a class; a new one if they are not fixed."""
        if not self.fixed and name != name.strip():  # "a.jpg, cat" would quietly make a second class of cats
            raise self.error(
                line, f"the name {shown(name)} begins or ends with white space; take it out, or state classes"
            )
        if self.fixed and name not in self.classes:
            raise self.error(line, f"there is no class {shown(name)}; {nearest(name, list(self.classes))}")
        return self.classes.setdefault(name, len(self.classes))

    def zero(self, line: int, where: str = "") -> int:
        """What a value of 0 means; `where` begins the error."""
        if self.unlisted is None:
            ways = [f"unlisted={value!r} (--unlisted {value})" for value in ("unknown", "absent")]
            hint = f"say {ways[0]} if nobody looked, {ways[1]} if somebody made sure"
            raise self.error(line, f"{where}a value of 0 can mean two things; {hint}")
        return -1 if self.unlisted == "absent" else 0

    def add(self, row: int, column: int, value: int, line: int) -> None:
        """Add one label; 0 is one that is given as unknown, which `complete` does not make absent."""
        for entries, new in zip(self.entries, (row, column, value, line), strict=True):
            entries.append(new)

    def extend(self, *columns: npt.NDArray[np.integer]) -> None:
        """Add labels as arrays [K] of row, class, value and line."""
        for entries, new in zip(self.entries, columns, strict=True):
            entries.frombytes(np.ascontiguousarray(new, entries.typecode).data.cast("B"))

    def add_rows(self, signed: npt.NDArray[np.int8], columns: npt.NDArray[np.int64]) -> None:
        """Add all labels [n, k] of the next n new rows; `columns` [k] are all classes that the file has."""
        if self.whole is None:
            self.whole = CompressedRows(len(self.classes))
        order = np.argsort(columns)
        self.whole.add(signed[:, order], columns[order])
        self.blank += signed.size - int(np.count_nonzero(signed))

    def dataset(self, complete: bool = False, sort_classes: bool = False, repeats: bool = False) -> Dataset:
        """All rows, sorted by image id; `complete`: a label that the file does not give is absent.

        With `repeats` a label that is given again counts once, and is told in the notes; one that is given in two ways
        is an error in any case.
        """
        if complete:
            check_size(len(self.rows) * len(self.classes), self.path)
        ids, names = sorted(self.rows), sorted(self.classes) if sort_classes else list(self.classes)
        files = self._locate(ids)
        if self.whole is not None:
            ordered = None if ids == list(self.rows) else _numbers(self.rows, ids)
            labels = Labels(*self.whole.arrays(ordered), names, ids, copy=False)
            return Dataset(files, labels, notes=self._blank_note())
        row_rank, class_rank = _ranks(self.rows, ids), _ranks(self.classes, names)
        row, column, value, line = (np.frombuffer(entries, entries.typecode) for entries in self.entries)
        key = row_rank[row] * len(names) + class_rank[column]
        order = np.argsort(key, kind="stable")  # by line where a label is given twice
        key, value = key[order], value[order]
        again = np.flatnonzero(key[1:] == key[:-1])
        notes: tuple[str, ...] = ()
        if len(again):
            unlike = again[value[again] != value[again + 1]]
            of = unlike if len(unlike) and repeats else again
            pair = of[np.argmin(line[order[of + 1]])]  # the first in the file
            where = f"image {shown(ids[key[pair] // len(names)])}, class {shown(names[key[pair] % len(names)])}"
            one, two = line[order[pair]], line[order[pair + 1]]
            if len(unlike) or not repeats:
                first, second = value[pair : pair + 2]
                what = "given twice" if first == second else f"given as {first} and as {second}"
                raise self.error(two, f"{where}: {what}, see {self.unit} {one}; keep one of them")
            places = f"{self.unit}s {one} and {two}" if one != two else f"{self.unit} {one}"  # which held it twice
            such = f"such as {where} ({places})"
            notes = (f"{self.path}: {len(again):,} labels are given again, {such}; each counts once",)
            key, value = np.delete(key, again + 1), np.delete(value, again + 1)
        del order
        return Dataset(files, self._labels(key, value, complete, names, ids), notes=notes)

    def _locate(self, ids: list[str]) -> ImagePaths:
        """The files of all images, which must be there; those that are wrong are told in the order of the file."""
        try:
            found = self.folder.locate(ids)
            if self.folder.missing and ids != list(self.rows):
                self.folder.missing.clear()
                self.folder.locate(list(self.rows))
        except DataError:
            for name, line in zip(self.rows, self.lines, strict=True):  # which of them it was
                try:
                    self.folder.find(name)
                except DataError as error:
                    raise self.error(line, str(error)) from None
            raise
        if found.names != tuple(ids):  # a link is on the way to one of them, perhaps to a file that is there as well
            refuse_twice(found, ids, self.path)
        return self.folder.tell(found, self.path)

    def _blank_note(self) -> tuple[str, ...]:
        """A wide file can say "unknown" by a blank, so that `unlisted` does not speak of it."""
        if self.unlisted != "absent" or not self.blank:
            return ()
        hint = "unlisted='absent' is about zeros: write 0 or -1 where somebody made sure"
        return (f"{self.path}: {self.blank:,} blank cells are unknown; {hint}",)

    def error(self, line: int, message: str) -> DataError:
        place = f", {self.unit} {line}" if line else ""  # 0: above all lines
        return DataError(f"{self.path}{place}: {message}")

    def _labels(
        self,
        key: npt.NDArray[np.int64],
        value: npt.NDArray[np.int8],
        complete: bool,
        names: list[str],
        ids: list[str],
    ) -> Labels:
        """Labels from their ascending places in the matrix, read row after row."""
        height, width = len(ids), len(names)
        if complete:
            full = np.full(height * width, -1, np.int8)
            full[key] = value
            return Labels.from_dense(full.reshape(height, width), names, ids)
        if not value.all():
            key, value = key[value != 0], value[value != 0]
        starts = np.searchsorted(key, np.arange(height + 1) * width)
        return Labels(starts, (key % width).astype(np.int32), value, names, ids, copy=False)


def rows_of(labels: Labels, names: Sequence[str]) -> Iterator[tuple[str, list[int], list[int]]]:
    """The way back: the name of each row with the numbers and the values of its known classes, as plain Python."""
    for first in range(0, len(labels), 10_000):
        ends = labels.indptr[first : first + 10_001].tolist()
        columns, values = (part[ends[0] : ends[-1]].tolist() for part in (labels.indices, labels.values))
        for name, (begin, end) in zip(names[first : first + 10_000], pairwise(ends), strict=True):
            known = slice(begin - ends[0], end - ends[0])
            yield name, columns[known], values[known]


def check_classes(classes: Sequence[str]) -> None:
    """Raise unless `classes` is a list of different names."""
    listed = isinstance(classes, list | tuple) and all(isinstance(name, str) and name for name in classes)
    if not listed or len(set(classes)) < len(classes):
        raise DataError(f"classes={shown(classes)} is not possible; give a list of different names")


def _ranks(numbers: dict[str, int], names: list[str]) -> npt.NDArray[np.int64]:
    """Old number -> place in `names`, int64 [n]."""
    if names == list(numbers):  # in the order of the file, which is often sorted
        return np.arange(len(names))
    ranks = np.empty(len(names), np.int64)
    ranks[_numbers(numbers, names)] = np.arange(len(names))
    return ranks


def _numbers(numbers: dict[str, int], names: list[str]) -> npt.NDArray[np.int64]:
    """Place in `names` -> old number, int64 [n]."""
    return np.fromiter(map(numbers.__getitem__, names), np.int64, len(names))
