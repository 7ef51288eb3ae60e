"""Finding the images that a label file names: inside one folder, with one look at the disk for each."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from pluralis.data.dataset import require_files
from pluralis.data.safe_io import Inside
from pluralis.data.shards import Shards, is_shards
from pluralis.errors import DataError


def finder(images: str | Path) -> Folder | Shards:
    """Finds what a label file names: in a folder, or in tar shards."""
    return Shards(images) if is_shards(images) else Folder(images)


class Folder:
    """What `Inside` and `require_files` do, for a million names in seconds.

    The way to a folder is resolved once for all files in it. A file that is no link then lies where its name says, so
    that one `lstat` tells all; whatever is unusual about a name goes to `Inside`.
    """

    def __init__(self, root: str | Path) -> None:
        if not Path(root).is_dir():
            raise DataError(f"there is no image folder {str(root)!r}; give the one that the names start from")
        self._inside = Inside(root)
        self.missing: list[Path] = []
        self._parents: dict[str, tuple[str, str] | None] = {"": (os.path.realpath(root), "")}

    def find(self, name: str) -> tuple[str, Path]:
        """The usual spelling of `name` and its file; DataError where it leads outside, a note if it is missing."""
        head, _, tail = name.rpartition("/")
        parent = self._parents.get(head) or self._parent(head)
        plain = parent and tail not in ("", ".", "..") and "\\" not in tail and name[0] != "/" and len(name) < 1000
        if parent and plain:
            file = f"{parent[0]}/{tail}"
            try:
                mode = os.lstat(file).st_mode
            except (OSError, ValueError) as error:
                mode = 0
                if isinstance(error, FileNotFoundError) and len(os.fsencode(tail)) <= 255:
                    self.missing.append(Path(file))
                    return parent[1] + tail, Path(file)
            if stat.S_ISREG(mode):
                return parent[1] + tail, Path(file)
        found = self._inside.find(name)
        if not found.is_file():
            self.missing.append(found)
        return PurePosixPath(name).as_posix(), found

    def require(self, where: str | Path) -> None:
        """Raise if files were missing; `where` names them."""
        require_files(self.missing, where)

    def _parent(self, head: str) -> tuple[str, str] | None:
        """The real folder and the usual spelling, with its slash, of the way `head`; None if it is refused."""
        if head not in self._parents:
            try:
                self._inside.find(f"{head}/_")  # "C:" may be a folder, but "C:/_" is absolute to Windows
                self._parents[head] = str(self._inside.find(head)), f"{PurePosixPath(head).as_posix()}/"
            except DataError:
                self._parents[head] = None
        return self._parents[head]
