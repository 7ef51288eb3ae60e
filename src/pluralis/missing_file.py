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
_PLACE = 34  # bits of a key for the place in the matrix; the 30 above it order by chance

Block = tuple[slice, npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.bool_]]


def write_missing(path: Path, labels: Labels, found: Tensor, least: float = 0.5, layout: str = "long") -> int:
    """Write the unknown labels whose chance `found` [N, C] is at least `least`, and give their number.

    long: `image,label,probability`, the most likely of all first; equal ones by image and class.
    wide: an image a line, a class a column: 1 written, 0 verified absent, the chance, or blank below `least`.
    """
    number("relabel", "min-probability", least, low=0.0, high=1.0)
    wide = choice("relabel", "layout", layout, LAYOUTS) == "wide"
    if found.numel() > 1 << _PLACE:
        raise DataError(
            f"{found.numel():,} labels are over the limit of {1 << _PLACE:,}; name fewer images with --labels"
        )
    chances = found.numpy()
    count = sum(int(np.count_nonzero(likely)) for *_, likely in _blocks(labels, chances, least))
    if wide:
        write_csv(path, ["image", *map(neutralise, labels.classes)], _wide_lines(labels, chances, least))
    else:
        write_csv(path, HEADER, _long_lines(labels, _ranked(labels, chances, least, count)))
    return count


def _blocks(labels: Labels, chances: npt.NDArray[np.floating], least: float) -> Iterator[Block]:
    """Some rows at a time: which, their labels, their chances, and which of them are to be written."""
    height, width = chances.shape
    step = max(1, _CELLS // max(1, width))
    for first in range(0, height, step):
        rows = slice(first, min(first + step, height))
        known = labels.dense(np.arange(rows.start, rows.stop))
        yield rows, known, chances[rows].astype(np.float32, copy=False), (known == 0) & (chances[rows] >= least)


def _ranked(labels: Labels, chances: npt.NDArray[np.floating], least: float, count: int) -> npt.NDArray[np.uint64]:
    """A key [count] for each label that is written, in order.

    Chance and place in one number: sorting it in place takes no second array, and equal chances stay in their order.
    """
    keys, filled, width = np.empty(count, np.uint64), 0, chances.shape[1]
    for rows, _, chance, likely in _blocks(labels, chances, least):
        place = (np.flatnonzero(likely) + rows.start * width).astype(np.uint64)
        bits = np.minimum(np.abs(chance[likely]), 1).view(np.uint32).astype(np.uint64)  # abs: zero may have a sign
        keys[filled : filled + len(place)] = (np.uint64(_SURE) - bits) << np.uint64(_PLACE) | place
        filled += len(place)
    keys.sort()
    return keys


def _long_lines(labels: Labels, keys: npt.NDArray[np.uint64]) -> Iterator[tuple[str, str, str]]:
    ids, names = [neutralise(name) for name in labels.ids], [neutralise(name) for name in labels.classes]
    for first in range(0, len(keys), _CELLS):
        part = keys[first : first + _CELLS]
        place = (part & np.uint64((1 << _PLACE) - 1)).astype(np.int64)
        chance = (np.uint64(_SURE) - (part >> np.uint64(_PLACE))).astype(np.uint32).view(np.float32)
        rows, columns = (numbers.tolist() for numbers in np.divmod(place, len(names)))
        texts = map("{:.6f}".format, chance.tolist())
        yield from zip(map(ids.__getitem__, rows), map(names.__getitem__, columns), texts, strict=True)


def _wide_lines(labels: Labels, chances: npt.NDArray[np.floating], least: float) -> Iterator[list[str]]:
    ids, width = labels.ids, len(labels.classes)
    for rows, known, chance, likely in _blocks(labels, chances, least):
        cells = [""] * known.size
        shown = (known != 0) | likely
        values = np.where(known == 0, chance, known > 0)[shown]
        for place, value in zip(np.flatnonzero(shown).tolist(), values.tolist(), strict=True):
            cells[place] = f"{value:.6g}"
        for at, name in enumerate(ids[rows]):
            yield [neutralise(name), *cells[at * width : (at + 1) * width]]
