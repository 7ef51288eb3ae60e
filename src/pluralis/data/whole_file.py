"""Writing files so that their names hold the old content or all of the new, never a part or a mixture.

A file is written beside its name and renamed; of several files that belong together one is missing while they change;
and who reads several of them looks afterwards whether they are still the same (`unchanged`).
"""

from __future__ import annotations

import errno
import fcntl
import filecmp
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pluralis.errors import DataError

_SHOWN = 40  # characters of a name that a hidden file beside it repeats: the whole could be too long
# Systems without locks (Lustre, FUSE); NFS, for a file that may not be written; a folder or a lock of somebody else.
_NO_LOCK = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EROFS}
_NO_SYNC = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.EINVAL}  # of a folder, on some systems


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
    """The same for files that belong together; the last is one without which none of them is read.

    Where more than one file changes, the last is taken away before and comes back after the others: whoever reads in
    between, or after a crash in between, finds it missing. A file that stays as it is is not touched. Two writers at
    once must be kept apart by `alone`.
    """
    with ExitStack() as stack:
        with _in_words(paths[0]):
            for path in filter(os.path.isdir, paths):  # found later, it would be too late for the others
                raise IsADirectoryError(errno.EISDIR, f"{path} is a folder")
            parts = [stack.enter_context(part_of(path)) for path in paths]
        with _in_words(paths[0], parts):
            yield parts
        with _in_words(paths[0]):
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


def put(part: Path, path: str | Path) -> None:
    """Make `part` the file `path` in one step; both the content and the name are on the disk afterwards."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(Path(path).parent)


@contextmanager
def set_aside(path: str | Path) -> Iterator[None]:
    """No file `path` is there in the block, nor after it; if the block fails, it is there again."""
    with ExitStack() as stack:
        with _in_words(path):
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, f"{path} is a folder")
            if os.path.lexists(path):
                aside = stack.enter_context(part_of(path))
                os.replace(path, aside)
                sync_folder(Path(path).parent)
                stack.push(lambda kind, *_: os.replace(aside, path) if kind else None)
        yield


@contextmanager
def unchanged(*paths: str | Path) -> Iterator[None]:
    """For reading files that belong together: raises if one was written in the meantime."""
    before = [(path, _state(path)) for path in paths]

    def check() -> None:
        for path, state in before:
            if _state(path) != state:
                raise DataError(f"{path}: was written while it was read; read it again when that is done")

    try:
        yield
    except DataError:
        check()  # what does not fit together may be of two writes
        raise
    check()


@contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """One process or thread at a time is in the block, for each `path`; a killed one holds up nobody.

    The lock lies beside `path`, whose folder must be there. Where the file system has no locks, or none can be made,
    the block goes ahead without: every file is whole still, but two writers at once may leave some files of each. A
    thread that is in the block must not enter it again for the same `path`.
    """
    name = Path(path).name
    place = _beside(path, f"{hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()}.lock")
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


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk, where the file system can tell."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


@contextmanager
def _locked(place: Path) -> Iterator[bool]:
    """Waits for the lock, and says whether `place` is still the file that is locked; true where there are no locks."""
    with ExitStack() as stack:
        here = False
        try:
            handle = _open_lock(place)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                here = os.path.samestat(os.fstat(handle), place.stat())
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise
            here = True
        yield here


def _open_lock(place: Path) -> int:
    """NFS locks only what is open for writing; a lock that another user left can only be read."""
    while True:
        try:
            try:
                return os.open(place, os.O_RDWR | os.O_NOFOLLOW)
            except PermissionError:
                return os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process has just made it
                return os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _publish(parts: Sequence[Path], paths: Sequence[str | Path]) -> None:
    pairs = list(zip(parts, paths, strict=True))
    key = pairs[-1]
    if len(pairs) > 1:
        pairs = [pair for pair in pairs if not (os.path.isfile(pair[1]) and filecmp.cmp(*pair, shallow=False))]
    if len(pairs) > 1:
        pairs = [*(pair for pair in pairs if pair != key), key]
        Path(key[1]).unlink(missing_ok=True)
        sync_folder(Path(key[1]).parent)
    for part, path in pairs:
        put(part, path)


def _state(path: str | Path) -> tuple[int, ...] | None:
    """Changes with every write of a file; none where it is not there."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _beside(path: str | Path, ending: str) -> Path:
    path = Path(path)
    return path.parent / f".{path.name[:_SHOWN]}.{ending}"


@contextmanager
def _in_words(path: str | Path, parts: Sequence[Path] | None = None) -> Iterator[None]:
    """With `parts`, an error that names another file than these is left as it is: somebody could not read."""
    try:
        yield
    except OSError as error:
        named = error.filename
        if parts is not None and named is not None and str(named) not in map(str, parts):
            raise
        words = f"{path}: cannot be written: {error.strerror or error}"
        raise DataError(f"{words}; check the folder and the space left") from None
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: cannot be written: {error}; rename what is not valid text") from None
