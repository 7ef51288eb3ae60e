"""Annotation files of PASCAL VOC: what is drawn in one picture, in plain XML of a limited size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pluralis.data.formats.boxes import Box, is_box
from pluralis.errors import DataError

MAX_BYTES = 1 << 18  # of one annotation file: eighteen times the largest of VOC 2012, train and val
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class Thing(NamedTuple):
    """One object of a picture; `where` says which one, for errors."""

    name: str
    difficult: bool
    where: str
    entry: Any


class Annotation:
    """The content of one annotation file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = _parse(path)

    @property
    def filename(self) -> str:
        """The file that it describes, or nothing."""
        return (self._root.findtext("filename") or "").strip()

    def things(self) -> Iterator[Thing]:
        """The objects, without their parts."""
        for number, entry in enumerate(self._root.findall("object"), start=1):
            where = f"{self.path}, object {number}"
            name = (entry.findtext("name") or "").strip()
            if not name:
                raise DataError(f"{where}: it has no name; unpack the annotations again")
            difficult = (entry.findtext("difficult") or "").strip()
            if difficult not in ("", "0", "1"):
                raise DataError(f"{where}: difficult is {difficult[:80]!r}; write 1, or 0 for one that is not")
            yield Thing(name, difficult == "1", where, entry)


def box(thing: Thing) -> Box:
    """The edges of its box; the last pixel belongs to it."""
    try:
        left, top, right, bottom = (float(thing.entry.findtext(f"bndbox/{side}") or "") for side in _SIDES)
    except ValueError:
        raise DataError(f"{thing.where}: its bndbox does not hold the numbers {', '.join(_SIDES)}") from None
    if not is_box(left, top, right, bottom):
        raise DataError(f"{thing.where}: the box {left:g}, {top:g}, {right:g}, {bottom:g} is not possible")
    return left, top, right + 1, bottom + 1


def _parse(path: Path) -> Any:
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        if not path.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: is not there, so its boxes are not known; unpack the annotations again")
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: over the limit of {MAX_BYTES:,} bytes; it is no annotation of an image")
        return fromstring(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; unpack the annotations again") from None
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: is not plain XML: {words}; unpack the annotations again") from None
