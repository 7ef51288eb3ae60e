"""What every format reader gives: image files and their labels, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pluralis.errors import DataError
from pluralis.labels import Labels


@dataclass(frozen=True)
class Dataset:
    """Image `images[r]` has the labels of row r. Row order: sorted by image id (`labels.ids`)."""

    images: list[Path]
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images for {len(self.labels)} rows of labels; give as many")

    def __len__(self) -> int:
        return len(self.images)


def require_files(paths: Iterable[Path], where: str | Path) -> None:
    """Raise one DataError that counts all missing image files and names the first three.

    `where` is the file that lists them.
    """
    missing = [path for path in paths if not path.is_file()]
    if missing:
        named = ", ".join(repr(str(path)) for path in missing[:3])
        more = ", …" if len(missing) > 3 else ""
        raise DataError(
            f"{where}: {len(missing)} of the listed images are missing: {named}{more}; "
            "check the image folder, or take the entries out"
        )
