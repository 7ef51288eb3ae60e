"""Writing files so that their names hold the old content or all of the new, never a part or a mixture."""

from __future__ import annotations

import fcntl
import filecmp
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pluralis.errors import DataError

_SHOWN = 40  # characters of a name that a hidden file beside it repeats: the whole could be too long


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """The place to write to: it becomes `path` at the end of the block, and goes if that fails."""
    with whole_files(path) as [part]:
        yield part


@contextmanager
def whole_text(path: str | Path, newline: str = "\n") -> Iterator[TextIO]:
    """The same as a UTF-8 file that is open for writing."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline=newline) as file:
        yield file


@contextmanager
def whole_files(*paths: str | Path) -> Iterator[list[Path]]:
    """The same for files of one folder that belong together; the last is one without which none of them is read.

    It is taken away before the others change and comes last: whoever reads in between, or after a crash in between,
    finds it missing. Where only one file changes, that is one step, and none is taken away.
    """
    with _in_words(paths[0]), ExitStack() as stack:
        if len(paths) > 1:
            stack.enter_context(alone(paths[-1]))
        parts = [stack.enter_context(part_of(path)) for path in paths]
        yield parts
        for part in parts:
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        _publish(parts, paths)


@contextmanager
def part_of(path: str | Path) -> Iterator[Path]:
    """A new, empty file beside `path`, under a name that nobody else has; gone after the block, unless renamed."""
    part = _beside(path, f"{os.getpid()}.{secrets.token_hex(4)}.tmp")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # no file or link that is there
    try:
        yield part
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """One process at a time is in the block, for each file or folder `path`; a killed one holds up nobody."""
    place = Path(path, ".pluralis.lock") if os.path.isdir(path) else _beside(path, "pluralis.lock")
    with ExitStack() as stack:
        with _in_words(path):
            while not stack.enter_context(_locked(place)):  # who was first has removed the file that we waited for
                stack.close()
        try:
            yield
        finally:
            with suppress(OSError):
                place.unlink()


def make_folder(path: str | Path) -> None:
    """Make a folder, and those above it, where they are not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        words = f"{path}: this folder cannot be made: {error.strerror or error}"
        raise DataError(f"{words}; name another place, or check what lies there and who may write") from None


@contextmanager
def _locked(place: Path) -> Iterator[bool]:
    """Waits for the lock, and says whether `place` is still the file that is locked."""
    handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            here = os.path.samestat(os.fstat(handle), place.stat())
        except FileNotFoundError:
            here = False
        yield here
    finally:
        os.close(handle)


def _publish(parts: Sequence[Path], paths: Sequence[str | Path]) -> None:
    pairs = list(zip(parts, paths, strict=True))
    if len(pairs) > 1:
        pairs = [pair for pair in pairs if not (os.path.isfile(pair[1]) and filecmp.cmp(*pair, shallow=False))]
    if len(pairs) > 1:
        Path(paths[-1]).unlink(missing_ok=True)
        sync_folder(Path(paths[-1]).parent)
        pairs = list(zip(parts, paths, strict=True))
    for part, path in pairs:
        os.replace(part, path)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: str | Path, ending: str) -> Path:
    folder, name = os.path.split(path)
    return Path(folder, f".{name[:_SHOWN]}.{ending}")


@contextmanager
def _in_words(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        words = f"{path}: cannot be written: {error.strerror or error}"
        raise DataError(f"{words}; check the folder and the space left") from None
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: cannot be written: {error}; rename what is not valid text") from None
