"""Text files of strangers, line by line: a line has a limit, and a file that is not UTF-8 is told by its place."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pluralis.errors import DataError

MAX_LINE = 16 << 20  # bytes: a wide table of a million classes
_BLOCK = 1 << 18


def open_text(path: str | Path, newline: str | None = None) -> TextIO:
    """A text file for reading, as `open` gives it, less a byte order mark; DataError at a line over MAX_LINE bytes.

    Else one line could fill the memory: a file of zeros has no end of line, and takes no room on the disk.
    """
    return io.TextIOWrapper(io.BufferedReader(_Limited(path), _BLOCK), encoding="utf-8-sig", newline=newline)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text, without spaces around it, of every line that is not empty."""
    number = 0
    try:
        if not path.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: is not there, or not a plain file; check the path, or unpack the data set again")
        with open_text(path) as file:
            for number, text in enumerate(file, start=1):
                stripped = text.strip()
                if stripped:
                    yield number, stripped
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, after line {number}: not UTF-8 ({error.reason}); unpack the data set again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}; unpack the data set again") from None


class _Limited(io.RawIOBase):
    """The bytes of a file, in blocks that are looked at on their way: no work for each line."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._file = path, io.FileIO(path)
        self._ended = self._length = 0  # lines that have ended, and bytes of the one that has not

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer) or 0
        block = bytes(buffer[:count])
        last = max(block.rfind(b"\n"), block.rfind(b"\r"))
        self._length = count - last - 1 + (self._length if last < 0 else 0)
        self._ended += block.count(b"\n")
        if self._length > MAX_LINE:
            where = f"{self._path}, line {self._ended + 1}"
            raise DataError(f"{where}: over the limit of {MAX_LINE:,} bytes; check that it is the right file")
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
