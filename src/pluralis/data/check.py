"""Opens every image once, on all cores, and writes a list of those that do not open.

What was opened is noted beside the list as work goes on, so that the same command goes on after an interruption and,
later, opens only what is new or changed. Nothing is moved, changed or left out: that is for the owner to decide.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from pluralis.data.formats.csv import neutralise, restore
from pluralis.data.formats.text_lines import open_text
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, Progress
from pluralis.data.whole_file import make_folder, whole_file
from pluralis.errors import DataError, Interrupted
from pluralis.labels import Labels

T = TypeVar("T")
COLUMNS = ("image", "file", "reason")
_BLOCK = 256  # images between two notes; those of one block are looked at again after a crash
_SIDE = 32  # of the squares that are decoded: every byte of a file is read for the smallest one too
_LINE = re.compile(rb"([0-9a-f]{32})(?: (.*))?\n")


@dataclass(frozen=True)
class Checked:
    """How many images were opened now and found in the notes, and (image id, file, reason) of those that are bad."""

    opened: int
    noted: int
    bad: list[tuple[str, str, str]] = field(default_factory=list)


def check_images(
    images: Images,
    labels: Labels,
    out: Path,
    *,
    of: str = "",
    workers: int = 0,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Checked:
    """Open the image of every row and write the bad ones to `out` as CSV: `image,file,reason`, in row order.

    The notes are `out` + ".checked"; they remember which data the list is `of`, for `is_list_of`. workers=0 uses every
    core. Memory: 16 bytes for each image in the notes.
    """
    notes = _Notes(Path(f"{out}.checked"))
    whole = b"" if isinstance(images, ImageFiles) else images.signature()
    opened = 0
    bad: list[tuple[str, str, str]] = []
    for first in range(0, len(images), _BLOCK):
        block = range(first, min(first + _BLOCK, len(images)))
        if stop():
            raise Interrupted(f"stopped with {first:,} of {len(images):,} images checked")
        keys = [_key(images, row, whole) for row in block]
        known = notes.find(keys)
        new = [row for row, seen in zip(block, known, strict=True) if not seen]
        reasons = dict(in_threads(lambda row: _reason(images, row), new, workers))
        notes.add((keys[row - first], reason) for row, reason in reasons.items())
        opened += len(new)
        for row, key in zip(block, keys, strict=True):
            reason = reasons[row] if row in reasons else notes.bad.get(key, "")
            if reason:
                bad.append((labels.id(row), images.name(row), reason))
        if progress is not None:
            progress(block.stop, len(images))
    notes.write(f"of {_name(of)}\n")  # before the list, so that a list that is there is never another's
    _write_list(out, bad)
    return Checked(opened, len(images) - opened, bad)


def is_list_of(out: Path, of: str) -> bool:
    """Whether the list `out` was written by a check of the data that is called `of`."""
    notes = Path(f"{out}.checked")
    last = ""
    if notes.is_file():
        with _in_words(notes), notes.open(errors="replace") as file:
            last = next(iter(deque((line for line in file if line.startswith("of ")), maxlen=1)), "")
    return last == f"of {_name(of)}\n"


def _name(of: str) -> str:
    return hashlib.sha256(of.encode(errors="surrogateescape")).hexdigest()


def read_list(path: Path) -> set[str]:
    """The image ids of a list that `check_images` wrote, or of any CSV file with a column `image`."""
    try:
        if not path.is_file():
            raise DataError(f"{path}: is not there, or not a plain file; give a list that `pluralis data check` wrote")
        with open_text(path, newline="") as file:
            lines = csv.DictReader(file, strict=True)
            if "image" not in (lines.fieldnames or ()):
                raise DataError(f"{path}: there is no column 'image'; give a list that `pluralis data check` wrote")
            return {restore(line["image"] or "") for line in lines}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}; give a list that `pluralis data check` wrote") from None


def in_threads(task: Callable[[int], T], rows: Sequence[int], workers: int = 0) -> Iterator[tuple[int, T]]:
    """(row, task(row)) for all rows, in order; decoding and hashing leave Python's lock to the others."""
    count = workers or os.cpu_count() or 1
    if count == 1 or len(rows) < 2:
        yield from ((row, task(row)) for row in rows)
        return
    with ThreadPoolExecutor(count) as pool:
        for first in range(0, len(rows), _BLOCK):  # all at once would hold a future for every image
            block = rows[first : first + _BLOCK]
            yield from zip(block, pool.map(task, block), strict=True)


def _reason(images: Images, row: int) -> str:
    """Why the image of a row does not decode; empty where it does."""
    try:
        images.decode(row, _SIDE)
    except DataError as error:
        return " ".join(str(error).split())
    return ""


def _key(images: Images, row: int, whole: bytes) -> bytes:
    """Changes with the name, size and time of change of a file, or `whole`, and with what checking means."""
    facts = ""
    if isinstance(images, ImageFiles):
        try:
            found = images.paths[row].stat()
            facts = f"{found.st_size}\0{found.st_mtime_ns}"
        except OSError:
            facts = "not there"
    name = f"check 1\0{images.name(row)}\0{facts}\0".encode(errors="replace")
    return hashlib.blake2b(name + whole, digest_size=16).digest()


class _Notes:
    """A file of one line an image: its key and, if it is bad, the reason."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad: dict[bytes, str] = {}
        keys = bytearray()
        if path.is_file():
            with _in_words(path), path.open("r+b") as file:
                for line in file:
                    found = _LINE.fullmatch(line)
                    if found:
                        key = bytes.fromhex(found[1].decode())
                        keys += key
                        if found[2]:
                            self.bad[key] = found[2].decode(errors="replace")
                    elif not line.endswith(b"\n"):  # cut off: the next note must not join it
                        file.truncate(file.tell() - len(line))
                        break
        self.keys = np.sort(np.frombuffer(bytes(keys), "S16"))

    def find(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each was noted before."""
        if not len(self.keys):
            return [False] * len(keys)
        wanted = np.array(keys, "S16")
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        seen: list[bool] = (self.keys[at] == wanted).tolist()
        return seen

    def add(self, notes: Iterable[tuple[bytes, str]]) -> None:
        self.write("".join(f"{key.hex()} {reason}".rstrip() + "\n" for key, reason in notes))

    def write(self, lines: str) -> None:
        if not lines:
            return
        make_folder(self.path.parent)
        with _in_words(self.path), self.path.open("ab") as file:
            file.write(lines.encode(errors="replace"))
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "make room or name another file with --out, then run the same command to go on"
        raise DataError(f"{path}: cannot be read or written: {error.strerror or error}; {hint}") from error


def _write_list(out: Path, bad: Iterable[tuple[str, str, str]]) -> None:
    make_folder(out.parent)
    with whole_file(out) as part, part.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows([neutralise(cell) for cell in line] for line in bad)
