"""Hints in a file of their own, CSV `image,label,confidence`, beside labels in a format that cannot hold them.

The file of missing labels that `pluralis relabel` writes, `image,label,probability`, is read as one too.
"""

from __future__ import annotations

import csv
from array import array
from collections import defaultdict
from pathlib import Path

import numpy as np

from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats.csv import neutralise, restore
from pluralis.data.formats.csv_records import records
from pluralis.data.formats.listing import file_names
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, nearest

_HEADER = ["image", "label", "confidence"]
_ALSO = ["image", "label", "probability"]


def write_hints(path: str | Path, data: Dataset, images: str | Path | None = None) -> None:
    """Write what a machine said; images are named by their paths below the folder `images`, as in label files."""
    if data.hints is None:
        raise DataError(f"{path}: the data has no hints; leave the file out")
    names = [neutralise(name) for name in file_names(data, images)]
    classes = [neutralise(name) for name in data.labels.classes]
    hints = zip(data.hints.rows, data.hints.columns, data.hints.confidence, strict=True)
    with whole_text(path, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_HEADER)
        # Nine digits bring every number of 32 bits back as it was.
        writer.writerows((names[row], classes[column], f"{sure:.9g}") for row, column, sure in hints)


def read_hints(path: str | Path, data: Dataset) -> Dataset:
    """`data` with the hints of such a file beside those that it has; of several for a label the surest stays.

    An image is named by its id, or by the end of its path where that names one image.
    """
    find = _Rows(data)
    columns = {name: number for number, name in enumerate(data.labels.classes)}
    lines = records(path)
    _, header, _ = next(lines, (1, [], ""))
    if header not in (_HEADER, _ALSO):
        heads = f"{','.join(_HEADER)} (or {','.join(_ALSO)})"
        raise DataError(f"{path}, line 1: a file of hints begins with the line {heads}; write it there")
    rows, numbers, sure = array("q"), array("i"), array("f")
    for line, cells, _ in lines:
        if len(cells) != len(_HEADER):
            raise DataError(f"{path}, line {line}: {len(cells)} cells, not {', '.join(header)}; mend it")
        image, label = map(restore, cells[:2])
        row, column = find(image), columns.get(label)
        if row is None:
            raise DataError(f"{path}, line {line}: {image[:200]!r} is no image of the data; name it as the labels do")
        if column is None:
            known = nearest(label[:80], [name[:80] for name in columns])
            raise DataError(f"{path}, line {line}: there is no class {label[:80]!r}; {known}, or give all to classes")
        rows.append(row)
        numbers.append(column)
        sure.append(confidence(path, line, cells[2], header[2]))
    there = data.hints or Hints.gather([], [], [])
    every = Hints.gather(
        np.concatenate([there.rows, np.frombuffer(rows, np.int64)]),
        np.concatenate([there.columns, np.frombuffer(numbers, np.int32)]),
        np.concatenate([there.confidence, np.frombuffer(sure, np.float32)]),
    )
    return Dataset(data.images, data.labels, every, data.notes)


def confidence(path: str | Path, line: int, text: str, what: str = "confidence") -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise DataError(f"{path}, line {line}: the {what} {text[:40]!r} is not possible; give a number from 0 to 1")
    return value


class _Rows:
    """The row of an image, by its id or by the end of its path."""

    def __init__(self, data: Dataset) -> None:
        self.ids = {name: row for row, name in enumerate(data.labels.ids)}
        self.paths = data.images
        self.last: dict[str, list[int]] = {}  # rows by the last part of their path, made when it is first needed

    def __call__(self, name: str) -> int | None:
        if name in self.ids:
            return self.ids[name]
        if not self.last:
            self.last = defaultdict(list)
            for row, path in enumerate(self.paths):
                self.last[path.name].append(row)
        same = self.last.get(name.rpartition("/")[2], [])
        ends = [row for row in same if self.paths[row].as_posix().endswith(f"/{name}")]
        return ends[0] if len(ends) == 1 else None
