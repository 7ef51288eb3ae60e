"""Labels in CSV, long (`image,label[,value]`) or wide (`image,<class>,<class>…`), in UTF-8.

Long: a line gives one label of one image, value 1 present or -1 absent; without the value column every
line is a positive. A line with an empty label lists an image that has none. Wide: a line gives all
labels of one image, 1 present, -1 absent, blank unknown. The header tells which it is. A 0 means absent
to some and unknown to others: `unlisted` says what it means here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import file_names
from pluralis.data.formats.table import Table, rows_of
from pluralis.data.formats.text_lines import open_text
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, shown
from pluralis.labels import Labels

Records = Iterator[tuple[int, list[str]]]

_PACKED = 1 << 20  # cells of wide rows that are looked at together
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
    table = Table(path, images, classes, unlisted)
    lines = records(path)
    line, header = next(lines, (1, []))
    if not header:
        raise DataError(f"{path}: the file is empty; begin it with the line image,label")
    if "image" not in header:
        raise DataError(f"{path}, line {line}: there is no column 'image'; begin with the line image,label")
    if header in _LONG:
        _add_long(table, lines, len(header))
        # Sorted, since in order of appearance one new line could renumber them all.
        return table.dataset(complete=unlisted == "absent", sort_classes=classes is None)
    _add_wide(table, lines, header, line)
    return table.dataset()


def write(path: str | Path, data: Dataset | Labels, layout: str = "long", images: str | Path | None = None) -> None:
    """Write labels in the `layout` "long" or "wide"; `path` holds the old file or the whole new one, never a part.

    An image is named by its path below the folder `images`; without, by its id if that is where its path ends.

    Cells that a spreadsheet would run as a formula get a quote in front, which `read` takes away again.
    A long file does not keep the order of the classes, nor those without a label: give them to `read`. So with names
    that begin or end with white space, which it takes for a mistake where nobody has stated them.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    if layout not in ("long", "wide"):
        raise DataError(f"layout={layout!r} is not possible; choose 'long' or 'wide'")
    names = file_names(data, images)
    with whole_text(path, newline="") as file:
        csv.writer(file).writerows((_long_lines if layout == "long" else _wide_lines)(labels, names))


def _long_lines(labels: Labels, names: list[str]) -> Iterator[Iterable[Any]]:
    yield _LONG[1]
    classes = [neutralise(name) for name in labels.classes]
    for name, columns, values in rows_of(labels, names):
        image = neutralise(name)
        if columns:
            yield from zip(repeat(image), map(classes.__getitem__, columns), values)
        else:
            yield image, "", ""


def _wide_lines(labels: Labels, names: list[str]) -> Iterator[Iterable[Any]]:
    classes = [neutralise(name) for name in labels.classes]
    # Where image,label would come out, which heads a long file, the image goes last.
    at = len(classes) if ["image", *classes] in _LONG else 0
    yield [*classes[:at], "image", *classes[at:]]
    for name, columns, values in rows_of(labels, names):
        cells: list[Any] = [""] * len(classes)
        for column, value in zip(columns, values, strict=True):
            cells[column] = value
        cells.insert(at, neutralise(name))
        yield cells


def _add_long(table: Table, records: Records, width: int) -> None:
    """Lines of an image, a label and perhaps a value."""
    add_row, add_column, add_value, add_line = (entries.append for entries in table.entries)
    signs = _signs(table)
    rows: dict[str, int] = {}  # by the cell as it stands in the file: three lookups for a line like one before
    columns: dict[str, int] = {}
    without: dict[int, int] = {}
    for line, cells in records:
        if len(cells) != width:
            raise _wrong_width(table, cells, width, line)
        row, column = rows.get(cells[0]), columns.get(cells[1])
        text = cells[2] if width == 3 else "1"
        if row is None:
            row = rows[cells[0]] = table.row(restore(cells[0]), line)
        if column is None:
            name = restore(cells[1])
            if not name:
                if width == 3 and text.strip():
                    raise table.error(line, f"the value {shown(text)} has no label; name the class")
                if without.setdefault(row, line) != line:
                    raise table.error(line, f"image {shown(cells[0])} without a label: line {without[row]} says so too")
                continue
            column = columns[cells[1]] = table.column(name, line)
        value = signs.get(text)
        if value is None:
            if not text.strip():
                raise table.error(line, "the value is blank; write 1 or -1, or take the line out")
            value = _sign(table, text, line)
        add_row(row)
        add_column(column)
        add_value(value)
        add_line(line)


def _add_wide(table: Table, records: Records, header: list[str], line: int) -> None:
    """Lines of an image and a cell for each class."""
    at = header.index("image")
    names = [restore(name) for name in header[:at] + header[at + 1 :]]
    if not names or "" in names or len(set(names)) != len(names):
        raise table.error(line, "the wide format wants a column for each class, each with its own name")
    columns = np.array([table.column(name, line) for name in names])
    bytes_of = {text: sign & 255 for text, sign in {"": 0, **_signs(table)}.items()}
    lines: list[int] = []  # of each row
    packed = bytearray()  # a byte for each cell of the last rows
    for line, cells in records:
        if len(cells) != len(header):
            raise _wrong_width(table, cells, len(header), line)
        image = cells.pop(at)
        row = table.row(restore(image), line)
        if row < len(lines):
            raise table.error(line, f"image {shown(image)} is in line {lines[row]} already; keep one of them")
        lines.append(line)
        try:
            packed += bytes(map(bytes_of.__getitem__, cells))
        except KeyError:
            packed += bytes(_sign(table, cell, line) & 255 for cell in cells)
        if len(packed) >= _PACKED:
            _unpack(table, packed, columns, lines)
            packed.clear()
    _unpack(table, packed, columns, lines)


def _unpack(table: Table, packed: bytearray, columns: npt.NDArray[np.int64], lines: list[int]) -> None:
    """Add the labels of the last rows."""
    signs = np.frombuffer(bytes(packed), np.int8).reshape(-1, len(columns))
    first = len(lines) - len(signs)
    row, place = np.nonzero(signs)
    table.extend(first + row, columns[place], signs[row, place], np.array(lines[first:], np.int64)[row])


def _signs(table: Table) -> dict[str, int]:
    """Text -> 1, -1 or 0 unknown, for the usual spellings."""
    known = {text: value for text, value in _VALUES.items() if value}
    return known if table.unlisted is None else {text: known.get(text) or table.zero(0) for text in _VALUES}


def _sign(table: Table, cell: str, line: int) -> int:
    """1, -1 or 0 unknown, for any spelling; a blank cell is unknown."""
    text = cell.strip()
    if text and text not in _VALUES:
        hint = "write 1 present or -1 absent (a file headed image,label or image,label,value is long, else wide)"
        raise table.error(line, f"the value {shown(cell)} is no label; {hint}")
    return (_VALUES[text] or table.zero(line)) if text else 0


def _wrong_width(table: Table, cells: list[str], width: int, line: int) -> DataError:
    return table.error(line, f"{len(cells)} cells under a header of {width}; quote cells that hold commas")


def records(path: str | Path) -> Records:
    """The lines that are not blank, as (line number, cells); a record over several lines has the first's."""
    line = 0
    try:
        if not Path(path).is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: cannot be read: it is not there, or not a plain file; check the path")
        with open_text(path, "utf-8-sig", newline="") as file:
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


def neutralise(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def restore(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
