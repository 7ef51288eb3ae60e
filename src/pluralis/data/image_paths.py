"""The paths of many images in the memory of their names: a `Path` is made when somebody asks for it."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt


class Missing(NamedTuple):
    """Images that `where`, a file, lists and that are not there, or are no plain files."""

    where: str
    files: tuple[str, ...]


class ImagePaths(Sequence[Path]):
    """A read-only list of paths below one folder; equal to any list of the same paths.

    A million `Path` objects take seconds to make and hundreds of megabytes. The names are often the ids of the rows,
    and then shared with them. With the folder "" the names are whole paths. `missing` tells which of them are not
    there, for whoever may go on without.

    >>> paths = ImagePaths("photos", ["a.jpg", "sub/b.jpg", "c.jpg"])
    >>> paths[1].name, len(paths), paths[:2] == [Path("photos/a.jpg"), Path("photos/sub/b.jpg")]
    ('b.jpg', 3, True)
    """

    __slots__ = ("_folder", "missing", "names")

    def __init__(self, folder: str | Path, names: Iterable[str], missing: Missing | None = None) -> None:
        """`names` are in their usual spelling: as the text of a `Path` has it."""
        text = str(Path(folder))
        self._folder = "" if text == "." else os.path.join(text, "")  # what a `Path` says of its files begins so
        self.names = tuple(names)
        self.missing = missing if missing is not None and missing.files else None

    @classmethod
    def of(cls, paths: Sequence[Path]) -> ImagePaths:
        """Any list of paths, as it is if it is of this kind already."""
        return paths if isinstance(paths, ImagePaths) else cls("", map(str, paths))

    def texts(self) -> Iterator[str]:
        """The paths as texts, which is much faster."""
        return map(self._folder.__add__, self.names)

    def take(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> ImagePaths:
        """The paths of `rows`, in that order."""
        return self._like(map(self.names.__getitem__, np.asarray(rows, np.int64).tolist()))

    def lacking(self, files: Iterable[str | Path], where: str | Path) -> ImagePaths:
        """The same paths, of which `files`, that `where` lists, are not there."""
        return ImagePaths(self._folder, self.names, Missing(str(where), tuple(map(str, files))))

    def _like(self, names: Iterable[str]) -> ImagePaths:
        like = ImagePaths(self._folder, names)
        if self.missing is None:
            return like
        left = set(like.texts())
        return like.lacking((file for file in self.missing.files if file in left), self.missing.where)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.texts())

    @overload
    def __getitem__(self, at: int) -> Path: ...
    @overload
    def __getitem__(self, at: slice) -> ImagePaths: ...
    def __getitem__(self, at: int | slice) -> Path | ImagePaths:
        return self._like(self.names[at]) if isinstance(at, slice) else Path(self._folder + self.names[at])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ImagePaths | list | tuple):
            return NotImplemented
        if isinstance(other, ImagePaths) and self._folder == other._folder and self.names == other.names:
            return True
        return len(self) == len(other) and all(map(operator.eq, self, other))

    def __add__(self, other: Sequence[Path]) -> list[Path]:
        return [*self, *other] if isinstance(other, ImagePaths | list | tuple) else NotImplemented

    def __radd__(self, other: Sequence[Path]) -> list[Path]:
        return [*other, *self] if isinstance(other, list | tuple) else NotImplemented

    def __repr__(self) -> str:
        return f"<{len(self):,} paths below {self._folder!r}>" if self._folder else f"<{len(self):,} paths>"
