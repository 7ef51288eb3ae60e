"""ARFF tables, dense and sparse, plain or gzipped, as far as multi-label data sets use them."""

from __future__ import annotations

import csv
import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_NAME = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s{}]+"""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_NAME})\s+(.+?)\s*$", re.IGNORECASE)
_NUMBERS = ("numeric", "real", "integer")


@dataclass(frozen=True)
class Table:
    """Columns by name; `values` [N, M] holds numbers, the position of a nominal value in its list, or NaN for `?`."""

    names: list[str]
    kinds: list[list[str]]  # the list of a nominal column, empty for numbers
    values: np.ndarray


def read_arff(path: Path) -> Table:
    opener = gzip.open if path.suffix == ".gz" else open
    names: list[str] = []
    kinds: list[list[str]] = []
    rows: list[list[float]] = []
    data = False
    with opener(path, "rt", encoding="utf-8") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.strip()
            if not line or line.startswith("%"):
                continue
            try:
                if data:
                    rows.append(_row(line, kinds))
                elif line.lower().startswith("@data"):
                    data = True
                elif found := _ATTRIBUTE.match(line):
                    names.append(_unquote(found[1]))
                    kinds.append(_kind(found[2]))
                elif not line.lower().startswith("@relation"):
                    raise ValueError("neither @relation, @attribute nor @data")
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not rows:
        raise ValueError(f"{path}: there are no rows after @data")
    return Table(names, kinds, np.array(rows, np.float64))


def _kind(text: str) -> list[str]:
    if text.lower().split()[0] in _NUMBERS:
        return []
    if text.startswith("{") and text.endswith("}"):
        return _cells(text[1:-1])
    raise ValueError(f"the type {text!r} is not known; numbers and {{lists}} are")


def _row(line: str, kinds: list[list[str]]) -> list[float]:
    if not line.startswith("{"):
        cells = _cells(line)
        if len(cells) != len(kinds):
            raise ValueError(f"{len(cells)} values for {len(kinds)} attributes")
        return [_value(cell, kind) for cell, kind in zip(cells, kinds, strict=True)]
    row = [0.0] * len(kinds)  # what a sparse row leaves out is 0, or the first of a list
    for pair in _cells(line.strip("{}")):
        place, _, cell = pair.partition(" ")
        if not place.isdecimal() or int(place) >= len(kinds):
            raise ValueError(f"{pair!r} is not the number of an attribute and a value")
        row[int(place)] = _value(_unquote(cell.strip()), kinds[int(place)])
    return row


def _cells(line: str) -> list[str]:
    quote = '"' if '"' in line else "'"
    cells = next(csv.reader([line], quotechar=quote, escapechar="\\", skipinitialspace=True), [])
    return [cell.strip() for cell in cells if cell.strip() or len(cells) > 1]


def _value(cell: str, kind: list[str]) -> float:
    if cell == "?":
        return float("nan")
    if not kind:
        return float(cell)
    if cell not in kind:
        raise ValueError(f"{cell!r} is not one of {', '.join(kind)}")
    return float(kind.index(cell))


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text
