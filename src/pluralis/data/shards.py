"""Images inside of tar files, read where they lie: nothing is unpacked.

A data set is a folder of `.tar` files or a pattern such as `shards/{000..009}.tar`. What is in a shard is noted once in
the user's cache (name, place and size of every image), and looked up there as long as the shard keeps its size and its
time of change. An image is then one read at a known place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pluralis.data.image_endings import ENDINGS
from pluralis.data.image_paths import ImagePaths
from pluralis.data.safe_io import bad_name, own_file, shown
from pluralis.data.tar_headers import Member, members
from pluralis.data.whole_file import whole_file
from pluralis.errors import DataError

_NOWHERE = (-1, 0, 0)  # the place of a member that is missing
_VERSION = 1  # of the notes
_MOST_SHARDS = 100_000
_MOST_OPEN = 64  # shards at a time, in each process
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def is_shards(images: str | Path) -> bool:
    """Whether `images` is a pattern of tar files, or a folder that holds tar files and no image nor folder."""
    if str(images).endswith(".tar"):
        return not Path(images).is_dir()
    if not Path(images).is_dir():
        return False
    tars = 0
    for entry in os.scandir(images):
        if entry.name.lower().endswith(ENDINGS) or os.path.isdir(entry.path):  # also of a link that leads to itself
            return False
        tars += entry.name.endswith(".tar")
    return tars > 0


def list_shards(images: str | Path) -> list[Path]:
    """The tar files that a folder holds, sorted, or that a pattern names, in its order.

    >>> [path.name for path in _expand("shards/{08..11}.tar")]
    ['08.tar', '09.tar', '10.tar', '11.tar']
    """
    if Path(images).is_dir():
        there = sorted(path for path in Path(images).glob("*.tar") if not path.name.startswith("."))
        found = [own_file(images, path) for path in there]
    else:
        found = _expand(str(images))
    missing = [path for path in found if not path.is_file()]
    if missing:
        named = ", ".join(map(str, missing[:3]))
        raise DataError(f"{images}: {len(missing)} of the {len(found)} shards are missing: {named}; check data.images")
    if not found:
        raise DataError(f"{images} holds no tar file; check data.images")
    return found


def _expand(pattern: str) -> list[Path]:
    found = [pattern]
    while match := _RANGE.search(found[0]):
        first, last = match[1], match[2]
        count = (int(last) - int(first) + 1) * len(found) if max(len(first), len(last)) < 10 else _MOST_SHARDS + 1
        if not 0 < count <= _MOST_SHARDS:
            raise DataError(f"data.images: {match[0]} names no shard, or over {_MOST_SHARDS:,}; write {{000..009}}")
        numbers = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
        found = [name.replace(match[0], number, 1) for name in found for number in numbers]
    return [Path(name) for name in found]


@dataclass(frozen=True)
class Shard:
    """A tar file as it was when its members were noted."""

    path: Path
    size: int
    time: int


def read_shard(path: Path) -> tuple[Shard, list[Member]]:
    """What is in the tar file at `path`, from the notes if there are any of it as it is now."""
    place = os.path.abspath(path)
    note = cache_folder() / f"{hashlib.sha256(place.encode(errors='surrogateescape')).hexdigest()[:32]}.json"
    facts = path.stat()
    state = [_VERSION, place, facts.st_size, facts.st_mtime_ns]
    found = _read_note(note, state)
    if found is None:
        found = members(path)
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            _write_note(note, state, found)
        except (OSError, DataError):
            pass  # without notes the headers are read again next time
    return Shard(path, facts.st_size, facts.st_mtime_ns), found


class Shards:
    """The members of several tar files by their names, which must be different.

    `usual`, `find`, `locate` and `tell` are those of a folder of images, so that a label file can name members as it
    would name files. The path of a member is that of its shard and its name behind it.
    """

    def __init__(self, images: str | Path) -> None:
        self.root = images
        self.shards: list[Shard] = []
        self.places: dict[str, tuple[int, int, int]] = {}  # name -> shard, first byte, count of bytes
        self.missing: list[Path] = []
        for number, path in enumerate(list_shards(images)):
            shard, found = read_shard(path)
            self.shards.append(shard)
            for member in found:
                place = (number, member.offset, member.size)
                other = self.places.setdefault(member.name, place)
                if other != place:
                    both = f"{self.shards[other[0]].path} and {path}"
                    raise DataError(f"{shown(member.name)} is in {both}; give every image a name of its own")

    def usual(self, name: str) -> str:
        """The usual spelling of `name`; DataError where it is no name."""
        reason = bad_name(name)
        if reason:
            raise DataError(f"entry {shown(name)} is refused: {reason}; give the name of a member of {self.root}")
        return os.path.normpath(name)

    def find(self, name: str) -> tuple[str, Path]:
        """The usual spelling of `name` and its path; DataError where it is no name, a note if it is missing."""
        usual = self.usual(name)
        if usual not in self.places:
            self.missing.append(Path(self.root) / usual)
            return usual, self.missing[-1]
        return usual, self.path(usual)

    def locate(self, names: Sequence[str]) -> ImagePaths:
        """The paths of all `names`, as `find` says."""
        return ImagePaths.of([self.find(name)[1] for name in names])

    def path(self, name: str) -> Path:
        return self.shards[self.places[name][0]].path / name

    def tell(self, found: ImagePaths, where: str | Path) -> ImagePaths:
        """The members that were found, knowing which of them, that `where` lists, are missing."""
        return found.lacking(self.missing, where)

    def files(self, names: Sequence[str]) -> ShardFiles:
        """The members of these names, in that order."""
        places = np.array([self.places.get(name, _NOWHERE) for name in names], np.int64).reshape(-1, 3)
        return ShardFiles(self.shards, list(names), places)

    def at(self, paths: Sequence[Path]) -> ShardFiles:
        """The members of these paths, in that order; of one that is missing the name is its path."""
        found = {str(shard.path) for shard in self.shards}
        names = []
        for path in ImagePaths.of(paths).texts():
            ends = (match.start() + 4 for match in re.finditer(r"\.tar/", path))
            names.append(next((path[end + 1 :] for end in ends if path[:end] in found), path))
        return self.files(names)


class ShardFiles:
    """Members of tar files, one for each row.

    `places` int64 [N, 3] holds the number of the shard, the first byte in it and the count of bytes, or _NOWHERE.
    """

    def __init__(self, shards: Sequence[Shard], names: list[str], places: npt.NDArray[np.int64]) -> None:
        self.shards, self.names, self.places = shards, names, places
        self._files: dict[int, BinaryIO] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        """The path of the shard and the name in it, for messages and lists."""
        shard = int(self.places[row, 0])
        return self.names[row] if shard < 0 else f"{self.shards[shard].path}/{self.names[row]}"

    def origins(self) -> Iterator[str]:
        """What each row is decoded from: it changes with the shard's place, and with whatever its folder says of it."""
        told = []
        for shard in self.shards:
            try:
                facts = shard.path.stat()
            except OSError as error:
                raise DataError(f"{shard.path}: cannot be read: {error.strerror or error}; check the path") from None
            told.append(
                f"{os.path.abspath(shard.path)}\0{shard.size}\0{shard.time}\0{facts.st_ctime_ns}\0{facts.st_ino}"
            )
        for shard, offset, size in self.places.tolist():
            yield f"{told[shard]}\0{offset}\0{size}"

    def digest(self, row: int) -> bytes:
        """A hash of the bytes of one row's file."""
        return hashlib.sha256(self.content(row)).digest()

    def content(self, row: int) -> bytes:
        """The bytes of one row's file."""
        shard, offset, size = self.places[row].tolist()
        if shard < 0:
            raise DataError(f"image {shown(self.names[row])} is not in the shards; pack it, or leave it out")
        try:
            file = self._open(shard)  # named, so that it stays open until the bytes are read
            content = os.pread(file.fileno(), size, offset)  # moves no position: threads may share it
        except OSError as error:
            raise DataError(f"{self.shards[shard].path}: cannot be read: {error.strerror or error}") from None
        if len(content) < size:
            raise DataError(f"{self.shards[shard].path} has become shorter; copy it again and start again")
        return content

    def _open(self, number: int) -> BinaryIO:
        shard = self.shards[number]
        with self._lock:
            file = self._files.pop(number, None)
            if file is None:
                file = shard.path.open("rb", buffering=0)
                facts = os.fstat(file.fileno())
                if (facts.st_size, facts.st_mtime_ns) != (shard.size, shard.time):
                    raise DataError(f"{shard.path} has changed since its images were listed; start again")
            self._files[number] = file  # last, as the one used last
            if len(self._files) > _MOST_OPEN:
                del self._files[next(iter(self._files))]  # closed as soon as no thread reads from it
            return file

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "names": self.names, "places": self.places}  # no open file

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def cache_folder() -> Path:
    """`$PLURALIS_CACHE/shards`, or `~/.cache/pluralis/shards`."""
    folder = os.environ.get("PLURALIS_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "pluralis") / "shards"


def _write_note(note: Path, state: list[Any], found: list[Member]) -> None:
    body = json.dumps({"state": state, "members": found})
    with whole_file(note) as part:
        part.write_text(f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}")


def _read_note(note: Path, state: list[Any]) -> list[Member] | None:
    """The members that were noted of a shard in this state; None where there is no note that can be trusted."""
    try:
        told, _, body = note.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(body).hexdigest().encode() != told:
        return None
    content = json.loads(body)
    return [Member(*member) for member in content["members"]] if content["state"] == state else None
