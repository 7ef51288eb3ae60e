"""Annotation files of PASCAL VOC: what is drawn in one picture, in plain XML of a limited size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pluralis.data.formats.boxes import Box, is_box
from pluralis.data.safe_xml import parse
from pluralis.errors import DataError

MAX_BYTES = 16 << 20  # of one annotation file: some 90,000 objects; VOC 2012 has no more than 14 kB
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_KEPT = {("name",), ("difficult",), *(("bndbox", side) for side in _SIDES)}  # of an object


class Thing(NamedTuple):
    """One object of a picture; `where` says which one, for errors, and `texts` what it holds."""

    name: str
    difficult: bool
    where: str
    texts: dict[tuple[str, ...], str]


class Annotation:
    """The content of one annotation file, gathered while it is parsed: nothing else of it is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filename = ""  # of the picture that it describes, or nothing
        self._objects: list[dict[tuple[str, ...], str]] = []
        self._within: list[str] = []
        self._text: list[str] = []
        parse(path, self, MAX_BYTES, "unpack or export the annotations again")

    def things(self) -> Iterator[Thing]:
        """The objects, without their parts."""
        for number, texts in enumerate(self._objects, start=1):
            where = f"{self.path}, object {number}"
            name = texts.get(("name",), "")
            if not name:
                raise DataError(f"{where}: it has no name; unpack the annotations again")
            difficult = texts.get(("difficult",), "")
            if difficult not in ("", "0", "1"):
                raise DataError(f"{where}: difficult is {difficult[:80]!r}; write 1, or 0 for one that is not")
            yield Thing(name, difficult == "1", where, texts)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._within.append(tag)
        self._text.clear()
        if self._within[1:] == ["object"]:
            self._objects.append({})

    def data(self, text: str) -> None:
        self._text.append(text)

    def end(self, tag: str) -> None:
        place = tuple(self._within[2:])
        if self._within[1:] == ["filename"]:
            self.filename = self.filename or "".join(self._text).strip()
        elif self._within[1:2] == ["object"] and place in _KEPT:
            self._objects[-1].setdefault(place, "".join(self._text).strip())
        self._within.pop()
        self._text.clear()

    def close(self) -> None:
        """Nothing is left to do."""


def box(thing: Thing) -> Box:
    """The edges of its box; the last pixel belongs to it."""
    try:
        left, top, right, bottom = (float(thing.texts.get(("bndbox", side), "")) for side in _SIDES)
    except ValueError:
        raise DataError(f"{thing.where}: its bndbox does not hold the numbers {', '.join(_SIDES)}") from None
    if not is_box(left, top, right, bottom):
        raise DataError(f"{thing.where}: the box {left:g}, {top:g}, {right:g}, {bottom:g} is not possible")
    return left, top, right + 1, bottom + 1
