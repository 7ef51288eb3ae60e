"""What image files hold, as one hash of their bytes, remembered for as long as no file shows a sign of change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError


class Files(Protocol):
    """Pictures in files."""

    def __len__(self) -> int: ...
    def digest(self, row: int) -> bytes:
        """A hash of the bytes that a row is decoded from."""

    def origins(self) -> Iterator[str]:
        """Where each row's bytes lie, as a text that changes when the file does."""


def content_hash(folder: Path, images: Files, now: str) -> str:
    """A hash of the bytes of all files, in row order; `now` is their `state`.

    They are read once. A note in `folder` then tells the hash by the files' places and what the file system says of
    them: size, number, time of change, and time of the last change of any kind, which programs do not set back.
    """
    note = folder / f"{now}.contents"
    with suppress(OSError, UnicodeDecodeError):
        told = note.read_text(encoding="ascii")
        if re.fullmatch(r"[0-9a-f]{64}\n", told):
            return told.strip()
    whole = hashlib.sha256()
    for row in range(len(images)):
        whole.update(images.digest(row))
    with suppress(OSError, DataError):  # without a note they are read again next time
        folder.mkdir(parents=True, exist_ok=True)
        with whole_text(note) as file:
            file.write(f"{whole.hexdigest()}\n")
    return whole.hexdigest()


def state(images: Files) -> str:
    """A hash of where the files lie and how they look from outside."""
    found = hashlib.sha256()
    for origin in images.origins():
        found.update(f"{origin}\0\0".encode(errors="surrogateescape"))
    return found.hexdigest()[:32]
