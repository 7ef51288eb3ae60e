"""Labels in CSV, long (`image,label[,value]`) or wide (`image,<class>,<class>…`), in UTF-8.

Long: a line gives one label of one image, value 1 present or -1 absent; without the value column every
line is a positive. A line with an empty label lists an image that has none. Wide: a line gives all
labels of one image, 1 present, -1 absent, blank unknown. The header tells which it is. A 0 means absent
to some and unknown to others: `unlisted` says what it means here.
"""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from pluralis.data.dataset import Dataset, require_files
from pluralis.data.safe_io import resolve_inside
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

Records = Iterator[tuple[int, list[str]]]

_LONG = (["image", "label"], ["image", "label", "value"])
# Data frames write whole numbers as fractions where a column has blanks.
_VALUES = {"1": 1, "+1": 1, "1.0": 1, "-1": -1, "-1.0": -1, "0": 0, "0.0": 0, "-0": 0, "-0.0": 0}
# A spreadsheet runs a cell that begins like this; a quote in front makes it text, and quotes stack up.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def read(
    path: str | Path,
    images: str | Path,
    classes: Sequence[str] | None = None,
    unlisted: str | None = None,
) -> Dataset:
    """Read the labels in `path` of images below the folder `images`; the id of an image is its name there.

    `classes` fixes the classes and their order; otherwise they are those of the header (wide) or all
    labels in the file, sorted (long). `unlisted`, "unknown" or "absent", is what a 0 means and, in the
    long format, what holds for a class that no line gives for an image (unless stated: unknown).
    """
    if unlisted not in (None, "unknown", "absent"):
        raise DataError(f"unlisted={unlisted!r} is not possible; choose 'unknown' or 'absent'")
    if classes is not None:
        listed = isinstance(classes, list | tuple) and all(isinstance(name, str) and name for name in classes)
        if not listed or len(set(classes)) < len(classes):
            raise DataError(f"classes={classes!r} is not possible; give a list of different names")
    records = _records(path)
    line, header = next(records, (1, []))
    if not header:
        raise DataError(f"{path}: the file is empty; begin it with the line image,label")
    if "image" not in header:
        raise DataError(f"{path}, line {line}: there is no column 'image'; begin with the line image,label")
    table = _Table(path, images, classes, unlisted)
    if header in _LONG:
        table.add_long(records, len(header))
    else:
        table.add_wide(records, header, line)
    return table.dataset()


def write(path: str | Path, data: Dataset | Labels) -> None:
    """Write labels in the long format; `path` holds the old file or the whole new one, never a part.

    Cells that a spreadsheet would run as a formula get a quote in front, which `read` takes away again.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    names = [neutralise(name) for name in labels.classes]
    part = Path(f"{path}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_LONG[1])
            for row, row_id in enumerate(labels.ids):
                known = slice(labels.indptr[row], labels.indptr[row + 1])
                lines = zip(labels.indices[known], labels.values[known], strict=True)
                cells = [(names[column], value) for column, value in lines] or [("", "")]
                writer.writerows((neutralise(row_id), name, value) for name, value in cells)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        part.unlink(missing_ok=True)
        raise DataError(f"{path}: cannot be written: {error}") from None


class _Table:
    """Gathers the images and labels of one file, and remembers the line that each came from."""

    def __init__(
        self, path: str | Path, images: str | Path, classes: Sequence[str] | None, unlisted: str | None
    ) -> None:
        if not Path(images).is_dir():
            raise DataError(f"there is no image folder {str(images)!r}; give the one that the names start from")
        self.path, self.root, self.unlisted = path, images, unlisted
        self.fixed, self.complete, self.sort_classes = classes is not None, False, False
        self.classes = {name: number for number, name in enumerate(classes or ())}
        self.rows: dict[str, int] = {}
        self.files: list[Path] = []
        self.entries = array("q")  # row, class, value and line of one label after the other

    def add_long(self, records: Records, width: int) -> None:
        """Lines of an image, a label and perhaps a value."""
        self.complete = self.unlisted == "absent"
        self.sort_classes = not self.fixed  # in order of appearance, one new line could renumber them all
        without: dict[int, int] = {}
        for line, cells in records:
            self._check_width(cells, width, line)
            row, name, cell = self._row(cells[0], line), restore(cells[1]), cells[-1]
            if name:
                value = self._value(cell, line) if width == 3 else 1
                if value is None:
                    raise self._error(line, "the value is blank; write 1 or -1, or take the line out")
                self.entries.extend((row, self._column(name, line), value, line))
            elif cell.strip():
                raise self._error(line, f"the value {cell!r} has no label; name the class")
            elif without.setdefault(row, line) != line:
                raise self._error(line, f"image {cells[0]!r} without a label: line {without[row]} says so too")

    def add_wide(self, records: Records, header: list[str], line: int) -> None:
        """Lines of an image and a cell for each class."""
        at = header.index("image")
        names = [restore(name) for name in header[:at] + header[at + 1 :]]
        if not names or "" in names or len(set(names)) != len(names):
            raise self._error(line, "the wide format wants a column for each class, each with its own name")
        columns = [self._column(name, line) for name in names]
        seen: dict[int, int] = {}
        for line, cells in records:
            self._check_width(cells, len(header), line)
            row = self._row(cells[at], line)
            if seen.setdefault(row, line) != line:
                raise self._error(line, f"image {cells[at]!r} is in line {seen[row]} already; keep one of them")
            for column, cell in zip(columns, cells[:at] + cells[at + 1 :], strict=True):
                value = self._value(cell, line)
                if value:
                    self.entries.extend((row, column, value, line))

    def dataset(self) -> Dataset:
        """All rows, sorted by image id."""
        if not self.classes:
            raise DataError(f"{self.path}: there is no class in the file; label at least one image")
        require_files(self.files, self.path)
        ids, names = sorted(self.rows), sorted(self.classes) if self.sort_classes else list(self.classes)
        row_rank, class_rank = _ranks(self.rows, ids), _ranks(self.classes, names)
        row, column, value, line = np.array(self.entries, np.int64).reshape(-1, 4).T
        row, column = row_rank[row], class_rank[column]
        order = np.lexsort((line, column, row))
        again = np.flatnonzero((np.diff(row[order]) == 0) & (np.diff(column[order]) == 0))
        if len(again):
            pair = again[np.argmin(line[order[again + 1]])]  # the first in the file
            one, two = order[pair], order[pair + 1]
            what = "given twice" if value[one] == value[two] else f"given as {value[one]} and as {value[two]}"
            where = f"image {ids[row[two]]!r}, class {names[column[two]]!r}"
            raise self._error(line[two], f"{where}: {what}, see line {line[one]}; keep one of them")
        labels = Labels.from_entries(row, column, value, (len(ids), len(names)), names, ids)
        if self.complete:
            dense = labels.dense()
            labels = Labels.from_dense(np.where(dense == 0, -1, dense), names, ids)
        return Dataset([self.files[self.rows[name]] for name in ids], labels)

    def _row(self, cell: str, line: int) -> int:
        """The number of an image, new or known; the same file under two spellings is one image."""
        name = restore(cell)
        row = self.rows.get(name)
        if row is None:
            try:
                file = resolve_inside(self.root, name)
            except DataError as error:
                raise self._error(line, str(error)) from None
            row = self.rows.setdefault(PurePosixPath(name).as_posix(), len(self.files))
            if row == len(self.files):
                self.files.append(file)
        return row

    def _column(self, name: str, line: int) -> int:
        if not self.fixed and name != name.strip():  # "a.jpg, cat" would quietly make a second class of cats
            raise self._error(line, f"the name {name!r} begins or ends with white space; take it out")
        if self.fixed and name not in self.classes:
            raise self._error(line, f"there is no class {name!r}; {nearest(name, list(self.classes))}")
        return self.classes.setdefault(name, len(self.classes))

    def _value(self, cell: str, line: int) -> int | None:
        """1, -1 or 0 unknown; None for a blank cell."""
        text = cell.strip()
        if not text:
            return None
        value = _VALUES.get(text)
        if value is None:
            hint = "write 1 present or -1 absent (a file headed image,label or image,label,value is long, else wide)"
            raise self._error(line, f"the value {cell!r} is no label; {hint}")
        if value == 0 and self.unlisted is None:
            hint = "say unlisted='unknown' if nobody looked, unlisted='absent' if somebody made sure"
            raise self._error(line, f"a value of 0 can mean two things; {hint}")
        return -1 if value == 0 and self.unlisted == "absent" else value

    def _check_width(self, cells: list[str], width: int, line: int) -> None:
        if len(cells) != width:
            raise self._error(line, f"{len(cells)} cells under a header of {width}; quote cells that hold commas")

    def _error(self, line: int, message: str) -> DataError:
        return DataError(f"{self.path}, line {line}: {message}")


def _records(path: str | Path) -> Records:
    """The lines that are not blank, as (line number, cells); a record over several lines has the first's."""
    line = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)  # else an open quote would swallow the rest of the file
            for cells in reader:
                if cells:
                    yield line + 1, cells
                line = reader.line_num
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {line + 1} or later: not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}, line {line + 1}: {error}; check the quotes and the length of the cells") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; check the path") from None


def _ranks(numbers: dict[str, int], names: list[str]) -> np.ndarray:
    """Old number -> place in `names`, int64 [n]."""
    ranks = np.empty(len(names), np.int64)
    ranks[[numbers[name] for name in names]] = np.arange(len(names))
    return ranks


def neutralise(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def restore(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
