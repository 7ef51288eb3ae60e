"""The file of the labels that are missing: tens of millions of them in little more memory than their chances take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pluralis.data.formats.csv import neutralise
from pluralis.errors import DataError
from pluralis.labels import Labels
from pluralis.params import choice, number
from pluralis.predictions import HEADER, write_csv

LAYOUTS = ("long", "wide")

_CELLS = 1 << 18  # that become Python's objects together
_SURE = int(np.float32(1).view(np.uint32))  # the bits of a chance of 1; those of smaller ones are smaller numbers
_LEAST = 1e-6  # from 0 and from 1, of a chance beside labels: a spreadsheet shows 1.000000 as 1, and saves that
_PLACE = 34  # bits of a key for the place in the matrix; the 30 above it order by chance

Block = tuple[slice, npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.bool_]]


def write_missing(path: Path, labels: Labels, found: Tensor, least: float = 0.5, layout: str = "long") -> int:
    """Write the unknown labels whose chance `found` [N, C] is at least `least`, and give their number.

    long: `image,label,probability`, the most likely of all first; equal ones by image and class.
    wide: an image a line, a class a column, as the reader of label files has it: 1 present, -1 verified absent, blank
    unknown. Where the chance of an unknown label is at least `least` it stands there, never as 0 or 1: the reader
    refuses it until somebody has put a label or a blank in its place.
    """
    if choice("relabel", "layout", layout, LAYOUTS) == "long":
        keys = rank(labels, found, least)
        write_csv(path, HEADER, _long_lines(labels, keys))
        return len(keys)
    count = _count(labels, found, least)
    classes = [neutralise(name) for name in labels.classes]
    # Where image,label would come out, which heads a long file, the image goes last.
    at = len(classes) if classes in (["label"], ["label", "value"]) else 0
    write_csv(path, [*classes[:at], "image", *classes[at:]], _wide_lines(labels, found.numpy(), least, at))
    return count


def rank(labels: Labels, found: Tensor, least: float = 0.5) -> npt.NDArray[np.uint64]:
    """A key for each unknown label whose chance is at least `least`, the most likely first; for `ranked`.

    Chance and place in one number: sorting it in place takes no second array, and equal chances stay in their order.
    """
    keys, filled, width = np.empty(_count(labels, found, least), np.uint64), 0, len(labels.classes)
    for rows, _, chance, likely in _blocks(labels, found.numpy(), least):
        place = (np.flatnonzero(likely) + rows.start * width).astype(np.uint64)
        bits = np.minimum(np.abs(chance[likely]), 1).view(np.uint32).astype(np.uint64)  # abs: zero may have a sign
        keys[filled : filled + len(place)] = (np.uint64(_SURE) - bits) << np.uint64(_PLACE) | place
        filled += len(place)
    keys.sort()
    return keys


def ranked(keys: npt.NDArray[np.uint64], width: int) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Rows, classes and chances of the keys of a matrix of this width, some at a time."""
    for first in range(0, len(keys), _CELLS):
        part = keys[first : first + _CELLS]
        place = (part & np.uint64((1 << _PLACE) - 1)).astype(np.int64)
        chance = (np.uint64(_SURE) - (part >> np.uint64(_PLACE))).astype(np.uint32).view(np.float32)
        rows, columns = np.divmod(place, width)
        yield rows.tolist(), columns.tolist(), chance.tolist()


def _count(labels: Labels, found: Tensor, least: float) -> int:
    """How many there are, once it is known that their keys are large enough."""
    number("relabel", "min-probability", least, low=0.0, high=1.0)
    if found.numel() > 1 << _PLACE:
        raise DataError(
            f"{found.numel():,} labels are over the limit of {1 << _PLACE:,}; name fewer images with --labels"
        )
    return sum(int(np.count_nonzero(likely)) for *_, likely in _blocks(labels, found.numpy(), least))


def in_words(count: int, labels: Labels, least: float, how: str) -> str:
    """What was found, in one sentence; `how` says what the chances rest on."""
    unknown = int(labels.summary().unknown.sum())
    return f"{count:,} of {unknown:,} unknown labels have a chance of at least {least:g} {how}".rstrip()


def _blocks(labels: Labels, chances: npt.NDArray[np.floating], least: float) -> Iterator[Block]:
    """Some rows at a time: which, their labels, their chances, and which of them are to be written."""
    height, width = chances.shape
    step = max(1, _CELLS // max(1, width))
    for first in range(0, height, step):
        rows = slice(first, min(first + step, height))
        known = labels.dense(np.arange(rows.start, rows.stop))
        yield rows, known, chances[rows].astype(np.float32, copy=False), (known == 0) & (chances[rows] >= least)


def _long_lines(labels: Labels, keys: npt.NDArray[np.uint64]) -> Iterator[tuple[str, str, str]]:
    ids, names = [neutralise(name) for name in labels.ids], [neutralise(name) for name in labels.classes]
    for rows, columns, chances in ranked(keys, len(names)):
        texts = map("{:.6f}".format, chances)
        yield from zip(map(ids.__getitem__, rows), map(names.__getitem__, columns), texts, strict=True)


def _wide_lines(labels: Labels, chances: npt.NDArray[np.floating], least: float, at: int) -> Iterator[list[str]]:
    ids, width = labels.ids, len(labels.classes)
    for rows, known, chance, likely in _blocks(labels, chances, least):
        cells = np.array(["-1", "", "1"], object)[known.ravel() + 1].tolist()
        for place, value in zip(np.flatnonzero(likely).tolist(), chance[likely].tolist(), strict=True):
            cells[place] = f"{min(max(value, _LEAST), 1 - _LEAST):.6f}"
        for row, name in enumerate(ids[rows]):
            line = cells[row * width : (row + 1) * width]
            line.insert(at, neutralise(name))
            yield line
