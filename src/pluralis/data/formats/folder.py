"""Finding the images that a label file names: inside one folder, with one look at the disk for many of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pluralis.data.image_paths import ImagePaths
from pluralis.data.safe_io import Inside
from pluralis.data.shards import Shards, is_shards
from pluralis.errors import DataError

_MANY = 16  # names in one folder from which on it is listed
_ENTRIES = 3  # of a folder that can be listed in the time of looking at one file
_LONGEST_PART = 255  # bytes, as file systems have it
_LONGEST_HEAD = 700  # characters, so that with a tail it is no longer than a path may be


def finder(images: str | Path) -> Folder | Shards:
    """Finds what a label file names: in a folder, or in tar shards."""
    return Shards(images) if is_shards(images) else Folder(images)


class _Parent(NamedTuple):
    """What the head of a name stands for; both end with a slash."""

    real: str  # the folder that it leads to, without links
    usual: str  # its usual spelling; "" for the root


class Folder:
    """What `Inside` and a look at every file do, for a million names in seconds.

    A name is a head, which ends with a slash or is empty, and a tail. Where a head leads is found once for all files
    there. One that is no link lies where its tail says, so that one `lstat`, or a line of the folder's list, tells all;
    whatever is unusual about a name goes to `Inside`.
    """

    def __init__(self, root: str | Path) -> None:
        if not Path(root).is_dir():
            # A run keeps the path as it was given, and another command may be started elsewhere.
            at = "" if Path(root).is_absolute() else f" in {os.getcwd()}, where the command was started"
            raise DataError(
                f"there is no image folder {str(root)!r}{at}; give the one that the names start from (--images)"
            )
        self._inside = Inside(root)
        self.missing: list[Path] = []
        self._base = os.path.join(os.path.realpath(root), "")
        self._parents: dict[str, _Parent | None] = {"": _Parent(self._base, "")}  # by their head

    def usual(self, name: str) -> str:
        """The usual spelling of `name`; DataError where it is none, or its folder is refused. No file is looked at."""
        head, tail = _split(name)
        parent = self._parent_of(head, tail)
        if parent is None:
            self._inside.find(name)
            return PurePosixPath(name).as_posix()
        return name if parent.usual == head else parent.usual + tail

    def find(self, name: str) -> tuple[str, Path]:
        """The usual spelling of `name` and its file; DataError where it leads outside, a note if it is missing."""
        head, tail = _split(name)
        parent = self._parent_of(head, tail)
        if parent is not None:
            file, usual = parent.real + tail, parent.usual + tail
            try:
                if stat.S_ISREG(os.lstat(file).st_mode):
                    return usual, Path(file)
            except FileNotFoundError:
                self.missing.append(Path(file))
                return usual, Path(file)
            except OSError:
                pass  # `Inside` says why
        found = self._inside.find(name)
        if not os.path.isfile(found):  # also where nobody may look
            self.missing.append(found)
        return PurePosixPath(name).as_posix(), found

    def locate(self, names: Sequence[str]) -> ImagePaths:
        """The files of all `names`, as `find` says, with one look at a folder for many regular files in it."""
        unseen: dict[str, set[str]] = {}  # tails by their head
        for name in names:
            end = name.rfind("/") + 1  # no call of `_split`: this loop is most of the work
            if name[:end] not in unseen:
                unseen[name[:end]] = set()
            unseen[name[:end]].add(name[end:])
        real = {head: self._take_listed(head, tails) for head, tails in unseen.items()}
        if not any(unseen.values()) and all(head == folder for head, folder in real.items()):
            return ImagePaths(self._base, names)
        found = []
        for name in names:
            head, tail = _split(name)
            if tail in unseen[head]:
                found.append(str(self.find(name)[1])[len(self._base) :])
            else:
                found.append(name if real[head] == head else real[head] + tail)
        return ImagePaths(self._base, found)

    def tell(self, found: ImagePaths, where: str | Path) -> ImagePaths:
        """The files that were found, knowing which of them, that `where` lists, are missing."""
        return found.lacking(self.missing, where)

    def _take_listed(self, head: str, tails: set[str]) -> str:
        """Take the regular files that a list of their folder shows out of `tails`; the real folder, from the root.

        Where the folder holds far more than is asked for, only a part of it is listed: the rest is not worth it. Where
        it is not listed at all, all tails stay, so that nobody asks for the folder: "" is as good as any.
        """
        parent = self._parent(head)
        if parent is None or len(tails) < _MANY or len(head) > _LONGEST_HEAD:
            return ""
        try:
            with os.scandir(parent.real) as entries:
                some = islice(entries, _ENTRIES * len(tails))
                regular = (entry.name for entry in some if entry.is_file(follow_symlinks=False))
                tails.difference_update(name for name in regular if "\\" not in name)
        except OSError:  # it may be entered but not listed, or it is not there: each file is looked at
            pass
        return parent.real[len(self._base) :]

    def _parent_of(self, head: str, tail: str) -> _Parent | None:
        """The parent of a name; None where it is refused, or something about the name is unusual."""
        if tail in ("", ".", "..") or "\\" in tail or "\0" in tail or len(head) + len(tail) > 1000:
            return None
        try:
            length = len(tail if tail.isascii() else os.fsencode(tail))
        except UnicodeEncodeError:
            return None
        return self._parent(head) if length <= _LONGEST_PART else None

    def _parent(self, head: str) -> _Parent | None:
        """What `head` stands for; None if it is refused."""
        if head not in self._parents:
            usual = PurePosixPath(head).as_posix()
            try:
                if usual == ".":
                    self._parents[head] = self._parents[""]
                else:  # found with its slash: "C:" may be a folder, but "C:/" is absolute to Windows
                    self._parents[head] = _Parent(f"{self._inside.find(head)}/", f"{usual}/")
            except DataError:
                self._parents[head] = None
        return self._parents[head]


def _split(name: str) -> tuple[str, str]:
    """The head and the tail of a name."""
    end = name.rfind("/") + 1
    return name[:end], name[end:]
