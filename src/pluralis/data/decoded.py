"""Decoded pictures kept on disk: read from there while training, and found again by the next run.

One file holds the squares of one list of images and, behind them, a checksum of each. Its name is a hash of what they
were made from (the bytes of every image file, the way of decoding, the side), so that a changed image is decoded anew,
and files that were moved or copied are not. A file that was cut is made again; a square whose bits have changed is
decoded again when it is first read. A file appears in one step, and of several processes that want it one makes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.data.contents import content_hash, state
from pluralis.data.images import decoding
from pluralis.errors import DataError

Say = Callable[[str], None]
_MAGIC = b"squares1"


@runtime_checkable
class FromFiles(Protocol):
    """Pictures that are decoded from files."""

    def __len__(self) -> int: ...
    def decode(self, row: int, size: int) -> Tensor: ...
    def name(self, row: int) -> str: ...
    def digest(self, row: int) -> bytes: ...
    def origins(self) -> Iterator[str]: ...


class Squares:
    """The squares uint8 [N, 3, size, size] of `images` in the file `path`, read as they are asked for.

    They are read, not mapped: a file that is cut while it is mapped kills the process.
    """

    def __init__(self, path: Path, images: FromFiles, size: int, say: Say) -> None:
        self.path, self._images, self._size, self._say = path, images, size, say
        self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115  # for as long as this object lives
        self._sums = self._read_sums()
        self._checked = np.zeros(len(images), bool)

    def read(self, rows: Tensor) -> Tensor:
        """uint8 [len(rows), 3, size, size]."""
        out = torch.empty(len(rows), 3, self._size, self._size, dtype=torch.uint8)
        for square, row in zip(out.numpy().reshape(len(rows), 3 * self._size**2), rows.tolist(), strict=True):
            count = os.preadv(self._file.fileno(), [square.data], row * len(square))
            if self._checked[row]:
                if count == len(square):
                    continue
            elif count == len(square) and zlib.crc32(square.data) == self._sums[row]:
                self._checked[row] = True
                continue
            self._mend(row, square)
        return out

    def _mend(self, row: int, square: npt.NDArray[np.uint8]) -> None:
        """Decode a damaged square again, into memory and, where that is possible, into the file."""
        name = self._images.name(row)
        self._say(f"{self.path} is damaged at {name}: it is decoded again")
        square[:] = self._images.decode(row, self._size).numpy().reshape(-1)
        if zlib.crc32(square.data) != self._sums[row]:
            raise DataError(f"image {name!r} has changed since it was decoded into {self.path}: start again")
        try:
            with open(self.path, "r+b") as file:
                os.pwrite(file.fileno(), square.data, row * len(square))
        except OSError:
            pass  # a folder that is only read: it will be decoded again next time

    def _read_sums(self) -> npt.NDArray[np.uint32]:
        """The checksum of each square; DataError where the file is not what was once written."""
        count, start = len(self._images), len(self._images) * 3 * self._size**2
        end = 4 * count + 4 + len(_MAGIC)
        if os.fstat(self._file.fileno()).st_size == start + end:
            tail = os.pread(self._file.fileno(), end, start)
            table, check = tail[: 4 * count], tail[4 * count : 4 * count + 4]
            if tail.endswith(_MAGIC) and zlib.crc32(table).to_bytes(4, "little") == check:
                return np.frombuffer(table, "<u4")
        raise DataError(f"{self.path} is damaged")


def find_or_make(
    folder: Path, images: FromFiles, size: int, decode: Callable[[], Iterable[Tensor]], say: Say
) -> Squares:
    """The squares of `images` in `folder`; what is not there is made of the batches, in row order, of `decode`."""
    before = state(images)
    made_from = f"{size}\0{decoding()}\0{content_hash(folder, images, before)}"
    path = folder / f"{hashlib.sha256(made_from.encode()).hexdigest()[:32]}.squares"
    needed = len(images) * (3 * size**2 + 4)
    try:
        found = _find(path, images, size, say)
        if found is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _only_one(path.with_name(f".{path.name}.part"), say) as part:
                found = _find(path, images, size, say)  # made while we waited
                if found is None:
                    if path.exists():
                        say(f"{path} is damaged: the images are decoded again")
                    free = shutil.disk_usage(folder).free
                    if needed > free:
                        raise DataError(
                            f"{len(images)} images of {size} px take {needed / 2**30:.1f} GiB, but {free / 2**30:.1f}"
                            f" GiB are free in {folder}: make room, set run.decoded to another folder, or another"
                            " run.cache"
                        )
                    _write(part, decode())
                    if state(images) != before:
                        raise DataError("an image has changed while they were decoded: start again")
                    os.replace(part.name, path)
                    found = Squares(path, images, size, say)
        return found
    except OSError as error:
        raise DataError(
            f"cannot keep the decoded images in {folder}: {error.strerror or error}; make room, or set run.decoded"
            " to another folder"
        ) from error


def default_folder() -> Path:
    """`$PLURALIS_CACHE/decoded`, or `~/.cache/pluralis/decoded`."""
    folder = os.environ.get("PLURALIS_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "pluralis") / "decoded"


def _find(path: Path, images: FromFiles, size: int, say: Say) -> Squares | None:
    try:
        return Squares(path, images, size, say)
    except (FileNotFoundError, DataError):
        return None


@contextmanager
def _only_one(path: Path, say: Say) -> Iterator[BinaryIO]:
    """The file `path`, new and empty, for one process at a time; what a killed one has left is written over."""
    while True:
        with open(path, "ab", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another process decodes the same images: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            # Who was first has renamed or removed the file that we have waited for.
            if not _lies_at(file, path):
                continue
            file.truncate(0)
            try:
                yield file
            finally:
                if _lies_at(file, path):
                    path.unlink()
            return


def _lies_at(file: BinaryIO, path: Path) -> bool:
    """Whether `path` is still this open file: others may rename, remove and make files there at any moment."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write(file: BinaryIO, batches: Iterable[Tensor]) -> None:
    sums = []
    for batch in batches:
        for square in batch.numpy():
            sums.append(zlib.crc32(square.data))
        _write_all(file, batch.numpy().data)
    table = np.array(sums, "<u4").tobytes()
    _write_all(file, memoryview(table + zlib.crc32(table).to_bytes(4, "little") + _MAGIC))
    os.fsync(file.fileno())


def _write_all(file: BinaryIO, data: memoryview) -> None:
    data = data.cast("B")
    while data:
        data = data[file.write(data) :]
