"""Formats that list what is present and say nothing of the rest: what not listed means, and what they can hold."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pluralis.data.dataset import Dataset
from pluralis.data.formats.folder import Folder
from pluralis.data.image_paths import ImagePaths
from pluralis.data.shards import is_shards
from pluralis.errors import DataError, LabelError, shown
from pluralis.labels import Labels

_MOST = 2**31  # labels: ten gigabytes


def check_unlisted(unlisted: str | None) -> str:
    """What is stated to hold for a class that is not listed for an image."""
    if unlisted is None or unlisted not in ("unknown", "absent"):
        raise DataError(
            f"unlisted={unlisted!r} is not possible; say 'absent' if every class was looked for in every image, "
            "as for COCO, else 'unknown' (--unlisted): the file does not tell whether somebody looked"
        )
    return unlisted


def check_images(folder: str | Path | None, file: str | Path) -> Path:
    """The folder that the names in `file` start from."""
    if folder is None:
        raise DataError(f"{file}: the images of a single file are not known; name their folder (--images DIR)")
    if not Path(folder).is_dir():
        raise DataError(f"there is no image folder {str(folder)!r}; give the one that the file names start from")
    return Path(folder)


def locate(folder: Path, names: Iterable[str], file: str | Path, drop: bool = False) -> tuple[list[int], ImagePaths]:
    """The files of `names`, which `file` lists, below the folder, and the places of those names in the list.

    The paths know which files are missing; with `drop` these are left out. A file under two names is an error.
    """
    lookup, listed = Folder(folder), list(names)
    try:
        found = lookup.locate(listed)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    refuse_twice(found, listed, file)
    lacking = set(map(str, lookup.missing)) if drop else set()
    places = [place for place, path in enumerate(found.texts()) if path not in lacking]
    return places, found.take(places) if drop else lookup.tell(found, file)


def left_out(file: str | Path, names: Sequence[str], places: Sequence[int], folder: Path) -> tuple[str, ...]:
    """A note about those of the `names` in `file` that are not in the folder, and so have no place; none if all are."""
    if len(places) == len(names):
        return ()
    first = names[min(set(range(len(names))).difference(places))]
    count = f"{len(names) - len(places):,} of {len(names):,} images"
    return (f"{file}: {count} are not in {folder}, such as {shown(first)}, and are left out",)


def refuse_twice(paths: Sequence[Path], names: Sequence[str], file: str | Path) -> None:
    """Raise where two of the names, which `file` lists, are one file: its labels would be in two rows, and may differ.

    Two spellings, such as a.jpg and ./a.jpg, and a link beside the file that it leads to, are one file.
    """
    below = ImagePaths.of(paths).names
    if len(set(below)) == len(below):
        return
    first: dict[str, int] = {}
    for place, path in enumerate(below):
        other = first.setdefault(path, place)
        if other != place:
            both = f"{names[other][:200]!r} and {names[place][:200]!r}"
            image = paths[place].name[:200]
            raise DataError(f"{file}: {both} have one and the same image, {image!r}; keep one of them")


def check_size(labels: int, file: str | Path = "") -> None:
    """Refuse what a small file with many images and many classes would become, before it is made."""
    if labels > _MOST:
        where, hint = f"{file}: " if file else "", "say unlisted='unknown' (--unlisted), or split the file"
        raise DataError(f"{where}unlisted='absent' makes {labels:,} labels, too many; {hint}")


def from_lists(
    present: Sequence[Collection[int] | None], unlisted: str, classes: Sequence[str], ids: Sequence[str]
) -> Labels:
    """Labels from the numbers of the classes present in each row; a row of None was not looked at: all unknown."""
    width, complete = len(classes), unlisted == "absent"
    counts = [0 if row is None else width if complete else len(row) for row in present]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    check_size(int(indptr[-1]))
    if not complete:
        columns = np.fromiter((column for row in present for column in sorted(row or ())), np.int32, indptr[-1])
        return Labels(indptr, columns, np.ones(len(columns), np.int8), classes, ids, copy=False)
    values = np.full(indptr[-1], -1, np.int8)
    for start, row in zip(indptr, present, strict=False):
        if row:
            values[start + np.fromiter(row, np.int64, len(row))] = 1
    looked = int(indptr[-1]) // width if width else 0
    columns = np.tile(np.arange(width, dtype=np.int32), looked)
    return Labels(indptr, columns, values, classes, ids, copy=False)


def to_lists(labels: Labels, unlisted: str | None, blank: bool = False) -> Iterator[list[int] | None]:
    """The numbers of the classes present in each row, for a format that lists nothing else.

    Raises where reading them back with this `unlisted` would change a label: "unknown" cannot hold absent
    labels, "absent" cannot hold unknown ones. With `blank` the format can mark a row as not looked at:
    a row without any label is then None.
    """
    check_unlisted(unlisted)
    counts = np.diff(labels.indptr)
    if unlisted == "unknown":
        wrong = np.flatnonzero(labels.values < 0)[:1]
        row = np.searchsorted(labels.indptr, wrong, side="right") - 1
        words = "holds an absent label, which this format cannot say beside unknown ones"
    else:
        row = np.flatnonzero((counts != len(labels.classes)) & ~((counts == 0) & blank))[:1]
        words = "holds an unknown label, which this format cannot say beside absent ones"
    if len(row):
        raise LabelError(f"row {shown(labels.id(int(row[0])))} {words}; write csv, jsonl, lvis or openimages instead")
    return (
        None if blank and not counts[row] else [int(c) for c in labels.positives(row)] for row in range(len(labels))
    )


def file_names(data: Dataset | Labels, images: str | Path | None = None) -> list[str]:
    """The name of each row's image file, as it is written into a label file.

    With `images` it is the path below that folder. Without, or where these are tar shards, it is the row's id where
    the path ends with it, else the last part of the path; bare labels have their ids alone.
    """
    if isinstance(data, Labels):
        return list(data.ids)
    if images is None or is_shards(images):
        pairs = zip(ImagePaths.of(data.images).texts(), data.labels.ids, strict=True)
        names = [name if path.endswith(f"/{name}") else os.path.basename(path) for path, name in pairs]
    else:
        root = os.path.join(os.path.realpath(images), "")
        paths = ImagePaths.of(data.images)
        outside = next((path for path in paths.texts() if not path.startswith(root)), None)
        if outside is not None:
            raise DataError(f"image {outside!r} is not below {str(images)!r}; name the folder that holds all")
        names = [path[len(root) :] for path in paths.texts()]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(
            f"two images are called {shown(twice)}; name the folder that their paths start from (images=DIR)"
        )
    return names
