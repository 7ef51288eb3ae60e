"""The lines of a CSV file that a stranger made, as cells."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TextIO

from pluralis.data.formats.text_lines import open_text
from pluralis.errors import DataError

Records = Iterator[tuple[int, list[str], str]]

MINUS = "-"  # a cell of -1 in short
_LOOK = 10_000  # characters of a first line that are looked at for its separator


def records(path: str | Path, separator: str = ",", short: Callable[[list[str]], int] | None = None) -> Records:
    """The lines that are not blank, as (line number, cells, ""); a record over several lines has the first's.

    Below the header the third part holds the last `short(header)` cells of a line in a character each, where they are
    that short, and the list only the cell before them. A blank stands for an empty cell, and MINUS for one that holds
    -1. So a million lines of plain labels are read without a look at each cell.
    """
    with _opened(path) as source:
        lines = _cells(source, separator)
        header = next(lines, None)
        if header is None:
            return
        yield header
        width = 0 if short is None else short(header[1])
        if not width:
            yield from lines
            return
        for text in source.file:
            simple = _short_cells(text, separator, width)
            if simple is not None:
                yield source.line + 1, *simple
                source.line += 1
                continue
            reader = csv.reader(chain((text,), source.file), strict=True, delimiter=separator)
            cells = next(reader)
            if cells:
                yield source.line + 1, cells, ""
            source.line += reader.line_num


def _cells(source: _Source, separator: str) -> Records:
    """The records of a file; no more lines are read than those that were asked for take."""
    reader = csv.reader(source.file, strict=True, delimiter=separator)  # else an open quote would swallow the rest
    for cells in reader:
        first, source.line = source.line + 1, reader.line_num
        if cells:
            yield first, cells, ""


def _short_cells(text: str, separator: str, width: int) -> tuple[list[str], str] | None:
    """The first cell of a line and the characters of the others; None where a cell is longer, or there is a quote."""
    line, negative, empty = text.rstrip("\r\n"), f"{separator}-1", separator * 2
    minus = f"{separator}{MINUS}"
    if minus in line:
        if line.count(minus) != line.count(negative):
            return None
        line = line.replace(negative, minus)
    if line.endswith(separator):
        line += " "
    while empty in line:  # twice at most: of three separators in a row it finds the first two
        line = line.replace(empty, f"{separator} {separator}")
    first, marks, cells = line[: -2 * width], line[-2 * width :: 2], line[1 - 2 * width :: 2]
    if marks != separator * width or separator in first or '"' in line:
        return None
    return [first], cells


@dataclass
class _Source:
    """An open file, and the last line of those records that were read."""

    file: TextIO
    line: int = 0


@contextmanager
def _opened(path: str | Path) -> Iterator[_Source]:
    source = None
    try:
        if not Path(path).is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: cannot be read: it is not there, or not a plain file; check the path")
        with open_text(path, newline="") as file:
            source = _Source(file)
            yield source
    except (UnicodeDecodeError, csv.Error) as error:
        line = source.line + 1 if source else 1
        if isinstance(error, csv.Error):
            words = str(error).split(" expected after ")  # "';' expected after '"'"
            hint = _other_separator(path, words[0].strip("'")) if line == 1 and len(words) > 1 else ""
            hint = hint or "check the quotes and the length of the cells"
            raise DataError(f"{path}, line {line}: {error}; {hint}") from None
        raise DataError(f"{path}, line {line} or later: not UTF-8 ({error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; check the path") from None


def _other_separator(path: str | Path, wanted: str) -> str:
    """What to say where quoted cells of the first line are followed by another sign than the one `wanted`."""
    with open_text(path, newline="") as file:
        first = file.readline(_LOOK)
    signs = {";": ";", "\t": "tab", "|": "|", ",": ","}
    found = next((name for sign, name in signs.items() if f'"{sign}' in first and sign != wanted), "")
    return f"say separator={found!r}, or --set 'data.options.separator={found}'" if found else ""
