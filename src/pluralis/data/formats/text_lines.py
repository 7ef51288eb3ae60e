"""Lines of plain text files, for the data sets of universities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pluralis.errors import DataError


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text, without spaces around it, of every line that is not empty."""
    number = 0
    try:
        if not path.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: is not there, or not a plain file; unpack the data set again")
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                stripped = text.strip()
                if stripped:
                    yield number, stripped
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, after line {number}: not UTF-8 ({error.reason}); unpack the data set again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}; unpack the data set again") from None
