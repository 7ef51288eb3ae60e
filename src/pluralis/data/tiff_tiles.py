"""How large the tiles of a TIFF file are: each is decoded as a whole, and may be far larger than the image."""

from __future__ import annotations

import struct
from typing import BinaryIO

_WIDTH, _HEIGHT = 322, 323
_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q", 17: "q"}  # by the type of an entry
_MOST_ENTRIES = 65_535  # what the smaller kind of TIFF can count to, and more than decoders take of the larger


def tile_pixels(file: BinaryIO) -> int:
    """Width times height of the tiles of the first page; 0 where it has none.

    Of entries that are given twice the largest counts: decoders differ in which one they take.
    """
    file.seek(0)
    head = file.read(16).ljust(16, b"\0")
    order = "<" if head[:2] == b"II" else ">"
    large = head[2:4] in (b"+\0", b"\0+")
    counted, entry = ("Q", "HHQ8s") if large else ("H", "HHI4s")
    file.seek(struct.unpack_from(order + ("Q" if large else "I"), head, 8 if large else 4)[0])
    count = struct.unpack(order + counted, file.read(struct.calcsize(order + counted)))[0]
    length = struct.calcsize(order + entry)
    table = file.read(length * min(count, _MOST_ENTRIES))
    sides = {_WIDTH: 0, _HEIGHT: 0}
    for tag, kind, _, value in struct.iter_unpack(order + entry, table[: len(table) // length * length]):
        if tag in sides and kind in _NUMBERS:
            number = order + _NUMBERS[kind]
            if struct.calcsize(number) > len(value):  # then it lies elsewhere
                file.seek(struct.unpack(order + "I", value)[0])
                value = file.read(8)
            sides[tag] = max(sides[tag], struct.unpack_from(number, value)[0])
    return sides[_WIDTH] * sides[_HEIGHT]
