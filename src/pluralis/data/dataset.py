"""What every format reader gives: image files and their labels, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
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


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error about an unknown name: the one that was probably meant, or the ones there are."""
    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(repr(k) for k in known[:10])
    return f"choose from {shown}{', …' if len(known) > 10 else ''}"
