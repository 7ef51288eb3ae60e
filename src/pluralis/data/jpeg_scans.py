"""How often a JPEG file paints its picture: every scan goes over all of it, however few bytes the scan has."""

from __future__ import annotations

import re
from typing import BinaryIO

_MARKER = re.compile(rb"\xff+([^\x00\xff\x01\xd0-\xd7])")  # but those that are part of a scan
_SCAN, _END = 0xDA, 0xD9
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}


def has_more_scans(file: BinaryIO, most: int) -> bool:
    """Whether the JPEG file has more than so many scans.

    The usual kind of file, whose first scan holds all there is, is told by its header, and the rest is not read.
    """
    colours = _colours_if_single(file)
    place = file.tell()
    if colours and file.read(3)[2:] == bytes([colours]):
        return False
    file.seek(place)
    content = file.read()
    count, place = 1, 0
    while (found := _MARKER.search(content, place)) and found[1][0] != _END:
        place = found.end()
        if found[1][0] == _SCAN:
            count += 1
            if count > most:
                return True
        place += max(2, int.from_bytes(content[place : place + 2]))
    return False


def _colours_if_single(file: BinaryIO) -> int:
    """Goes to behind the first mark of a scan; the number of colours, or 0 where several scans may follow."""
    colours = 0
    file.seek(2)
    while len(mark := file.read(2)) == 2:
        if mark[0] != 0xFF:
            return 0
        if mark[1] == 0xFF:  # filling
            file.seek(-1, 1)
            continue
        if mark[1] == _SCAN:
            return colours
        if mark[1] == 0x01 or 0xD0 <= mark[1] <= 0xD8:  # without content
            continue
        length = int.from_bytes(file.read(2))
        if mark[1] in _FRAMES:
            frame = file.read(6)
            colours = frame[5] if len(frame) == 6 and mark[1] not in _PROGRESSIVE else 0
            length -= 6
        file.seek(max(0, length - 2), 1)
    return 0
