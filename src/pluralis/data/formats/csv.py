"""Labels in CSV, long (`image,label[,value]`) or wide (`image,<class>,<class>…`), in UTF-8.

Long: a line gives one label of one image, value 1 present or -1 absent; without the value column every
line is a positive. A line with an empty label lists an image that has none. With `several` a line may
give several labels. Wide: a line gives all labels of one image, 1 present, -1 absent, blank unknown. The
header tells which it is. A 0 means absent to some and unknown to others: `unlisted` says what it means here.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from pluralis.data.dataset import Dataset
from pluralis.data.formats.csv_records import MINUS, Records, records
from pluralis.data.formats.listing import file_names
from pluralis.data.formats.several_tags import part_tags, tags_note
from pluralis.data.formats.table import Table, rows_of
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, shown
from pluralis.labels import Labels

_PACKED = 1 << 20  # cells of wide rows that are looked at together
_WRONG = 2  # in a packed cell: not 1, -1 or 0
_SEPARATORS = {",": ",", ";": ";", "|": "|", "tab": "\t", "\t": "\t"}
_LONG = (["image", "label"], ["image", "label", "value"])
# Data frames write whole numbers as fractions where a column has blanks.
_VALUES = {"1": 1, "+1": 1, "1.0": 1, "-1": -1, "-1.0": -1, "0": 0, "0.0": 0, "-0": 0, "-0.0": 0}
# A spreadsheet runs a cell that begins like this, in some languages also with the wide signs of Japanese; a quote in
# front makes it text, and quotes stack up.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def read(
    path: str | Path,
    images: str | Path,
    classes: Sequence[str] | None = None,
    unlisted: str | None = None,
    separator: str = ",",
    several: str = "",
) -> Dataset:
    """Read the labels in `path` of images below the folder `images`; the id of an image is its name there.

    `classes` fixes the classes and their order; otherwise they are those of the header (wide) or all
    labels in the file, sorted (long). `unlisted`, "unknown" or "absent", is what a 0 means and, in the
    long format, what holds for a class that no line gives for an image (unless stated: unknown). In the wide format a
    blank cell is unknown, whatever it says. `separator` is ",", ";", "tab" or "|".

    `several` is what stands between the tags of one cell in the column `label` of a long file, such as "," for
    "person, horse": a label each, and the value of the line holds for all of them. Without it such a cell is one class,
    and a note tells where its parts are classes as well.
    """
    if separator not in _SEPARATORS:
        raise DataError(f"separator={shown(separator)} is not possible; choose ',', ';', 'tab' or '|'")
    mark = _SEPARATORS[separator]
    table = Table(path, images, classes, unlisted)
    lines = records(path, mark, _short_columns)
    line, header, _ = next(lines, (1, [], ""))
    if not header:
        raise DataError(f"{path}: the file is empty; begin it with the line image,label")
    if "image" not in header:
        other = [name for name, text in _SEPARATORS.items() if any(text in cell for cell in header)]
        told = f"say separator={other[0]!r}, or --set 'data.options.separator={other[0]}'" if other else ""
        hint = told or f"begin with the line image{mark}label"
        raise DataError(f"{path}, line {line}: there is no column 'image'; {hint}")
    if header in _LONG:
        _add_long(table, part_tags(lines, _SEPARATORS.get(several, several)) if several else lines, len(header))
        # Sorted, since in order of appearance one new line could renumber them all.
        found = table.dataset(complete=unlisted == "absent", sort_classes=classes is None, repeats=True)
        note = "" if several or classes else tags_note(found.labels.classes)
        return replace(found, notes=(*found.notes, f"{path}: {note}")) if note else found
    if several:
        hint = f"begin with the line image{mark}label, or, if each class has a column, say --set data.options.several="
        raise table.error(line, f"several={shown(several)} is about the column 'label'; {hint}")
    _add_wide(table, lines, line, header)
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


def _short_columns(header: list[str]) -> int:
    """How many columns of labels end the lines of a wide file, if its images come first; 0 in any other file."""
    return len(header) - 1 if header[0] == "image" and header not in _LONG else 0


def _add_long(table: Table, lines: Records, width: int) -> None:
    """Lines of an image, a label and perhaps a value."""
    add_row, add_column, add_value, add_line = (entries.append for entries in table.entries)
    signs = _signs(table)
    rows: dict[str, int] = {}  # by the cell as it stands in the file: three lookups for a line like one before
    columns: dict[str, int] = {}
    without: dict[int, int] = {}
    for line, cells, _ in lines:
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


def _add_wide(table: Table, lines: Records, line: int, header: list[str]) -> None:
    """Lines of an image and a cell for each class, below the header in `line`."""
    at = header.index("image")
    names = [restore(name) for name in header[:at] + header[at + 1 :]]
    if not names or "" in names or len(set(names)) != len(names):
        raise table.error(line, "the wide format wants a column for each class, each with its own name")
    columns = np.array([table.column(name, line) for name in names])
    bytes_of = defaultdict(lambda: _WRONG, {text: sign & 255 for text, sign in {"": 0, **_signs(table)}.items()})
    packed_of = bytearray([_WRONG]) * 256
    for character, text in {"1": "1", "0": "0", " ": "", MINUS: "-1"}.items():
        packed_of[ord(character)] = bytes_of[text]
    packed = bytearray()  # a byte for each cell of the last rows
    for line, cells, characters in lines:
        if not characters and len(cells) != len(header):
            raise _wrong_width(table, cells, len(header), line)
        table.new_row(restore(cells.pop(0 if characters else at)), line)
        row = characters.encode().translate(packed_of) if characters else bytes(map(bytes_of.__getitem__, cells))
        if _WRONG in row:
            cells = cells or ["-1" if character == MINUS else character for character in characters]
            pairs = zip(names, cells, strict=True)
            row = bytes(_sign(table, cell, line, f"column {shown(name)}: ") & 255 for name, cell in pairs)
        packed += row
        if len(packed) >= _PACKED:
            table.add_rows(np.frombuffer(bytes(packed), np.int8).reshape(-1, len(names)), columns)
            packed.clear()
    table.add_rows(np.frombuffer(bytes(packed), np.int8).reshape(-1, len(names)), columns)


def _signs(table: Table) -> dict[str, int]:
    """Text -> 1, -1 or 0 unknown, for the usual spellings."""
    known = {text: value for text, value in _VALUES.items() if value}
    return known if table.unlisted is None else {text: known.get(text) or table.zero(0) for text in _VALUES}


def _sign(table: Table, cell: str, line: int, where: str = "") -> int:
    """1, -1 or 0 unknown, for any spelling; a blank cell is unknown."""
    text = cell.strip()
    if text and text not in _VALUES:
        hint = "write 1 present or -1 absent (a file headed image,label or image,label,value is long, else wide)"
        raise table.error(line, f"{where}the value {shown(cell)} is no label; {hint}")
    return (_VALUES[text] or table.zero(line, where)) if text else 0


def _wrong_width(table: Table, cells: list[str], width: int, line: int) -> DataError:
    return table.error(line, f"{len(cells)} cells under a header of {width}; quote cells that hold the separator")


def neutralise(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def restore(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
