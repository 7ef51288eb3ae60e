"""What every format reader gives: image files and their labels, row by row."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pluralis.data.image_paths import ImagePaths
from pluralis.errors import DataError
from pluralis.labels import Labels

_LOOKED_AT = 10_000  # missing files, to see whether they are there under another name


@dataclass(frozen=True, eq=False)
class Hints:
    """What a machine said: in row `rows[k]` class `columns[k]` is present with `confidence[k]`, from 0 to 1.

    Guesses, not labels: they are kept beside the labels and nothing learns from them unless it asks.
    Three arrays [K], by row and then by class, no pair twice.
    """

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int32]
    confidence: npt.NDArray[np.float32]

    @classmethod
    def gather(cls, rows: npt.ArrayLike, columns: npt.ArrayLike, confidence: npt.ArrayLike) -> Hints:
        """Hints in any order; of those for the same row and class the most confident stays.

        >>> Hints.gather(rows=[1, 0, 1], columns=[1, 0, 1], confidence=[0.25, 1.0, 0.75]).confidence.tolist()
        [1.0, 0.75]
        """
        row, column = np.asarray(rows, np.int64), np.asarray(columns, np.int32)
        sure = np.asarray(confidence, np.float32)
        order = np.lexsort((-sure, column, row))
        row, column, sure = row[order], column[order], sure[order]
        first = np.ones(len(row), bool)
        first[1:] = (np.diff(row) != 0) | (np.diff(column) != 0)
        return cls(row[first], column[first], sure[first])

    def select(self, rows: npt.ArrayLike, height: int) -> Hints:
        """The hints for `rows` of `height` rows, which get new numbers in that order; no row twice."""
        chosen, place = np.asarray(rows, np.int64), np.full(height, -1)
        place[chosen] = np.arange(len(chosen))
        kept = place[self.rows] >= 0
        return Hints.gather(place[self.rows[kept]], self.columns[kept], self.confidence[kept])

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hints):
            return NotImplemented
        return all(np.array_equal(getattr(self, a), getattr(other, a)) for a in ("rows", "columns", "confidence"))


@dataclass(frozen=True)
class Dataset:
    """Image `images[r]` has the labels of row r, and `hints` what a machine said of it, or None.

    Row order: sorted by image id (`labels.ids`). `notes` says, a line each, what the reader has left out.
    """

    images: Sequence[Path]
    labels: Labels
    hints: Hints | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images for {len(self.labels)} rows of labels; give as many")
        if self.hints is not None and len(self.hints):
            height, width = self.labels.shape
            if not (0 <= self.hints.rows.min() <= self.hints.rows.max() < height) or not (
                0 <= self.hints.columns.min() <= self.hints.columns.max() < width
            ):
                raise DataError(f"a hint lies outside the {height} rows and {width} classes; number them as the labels")

    def __len__(self) -> int:
        return len(self.images)


def look_for(paths: Sequence[Path], where: str | Path) -> ImagePaths:
    """The same paths, which `where` lists, knowing which of them are no files."""
    return ImagePaths.of(paths).lacking((path for path in paths if not os.path.isfile(path)), where)


def require_files(images: Sequence[Path]) -> None:
    """Raise one DataError that counts all images that their reader did not find, and names the first three."""
    missing = ImagePaths.of(images).missing
    if missing is not None:
        named = ", ".join(map(repr, missing.files[:3]))
        more = ", …" if len(missing.files) > 3 else ""
        slashes = any("\\" in os.path.basename(file) for file in missing.files)
        check = "write / instead of \\ between folders" if slashes else "check the image folder"
        told = f"{missing.where}: {len(missing.files)} of the listed images are missing: {named}{more}"
        alike = _spelt_otherwise(missing.files)
        if alike:  # to leave them out would lose what is there
            raise DataError(f"{told}; {alike}")
        raise DataError(
            f"{told}; {check}, or take the entries out: `pluralis data check` lists all of them, and `pluralis data "
            "convert` leaves them out (--leave-out LIST)"
        )


def _spelt_otherwise(files: Sequence[str]) -> str:
    """What to do about files that are there under a name that looks the same, or differs in upper and lower case."""
    listed: dict[str, dict[str, str]] = {}
    twins = ((file, _twin(file, listed)) for file in files[:_LOOKED_AT])
    found = [(file, twin) for file, twin in twins if twin != file and os.path.isfile(twin)]
    if not found:
        return ""
    file, twin = found[0]
    same = unicodedata.normalize("NFC", file) == unicodedata.normalize("NFC", twin)
    differ = "how umlauts and accents are written, in one sign or in two" if same else "upper and lower case"
    return f"{len(found)} of them are there, such as {twin!r}: the names differ in {differ}; write both alike"


def _twin(path: str, listed: dict[str, dict[str, str]]) -> str:
    """What is there under this name or one that is spelt otherwise; "" where nothing is. Folders are listed once."""
    if os.path.exists(path):
        return path
    parent, name = os.path.split(path)
    folder = _twin(parent, listed) if name else ""
    if folder not in listed:
        entries = os.listdir(folder) if os.path.isdir(folder) and os.access(folder, os.R_OK) else []
        listed[folder] = {_alike(entry): os.path.join(folder, entry) for entry in entries}
    return listed[folder].get(_alike(name), "")


def _alike(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
