"""PASCAL VOC classification: the lists `ImageSets/Main/<class>_<split>.txt` and the photos `JPEGImages`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from pluralis.data.dataset import Dataset, require_files
from pluralis.data.safe_io import resolve_inside
from pluralis.errors import DataError
from pluralis.labels import Labels

_VALUES = {"1": 1, "-1": -1, "0": 0}


def read(root: str | Path, split: str = "train", difficult: str = "unknown") -> Dataset:
    """Read the images and labels of one split, "train", "val", "trainval" or another that has lists.

    `root` is the folder VOC20xx, or one above it that holds a single VOC20xx. The classes are those
    with a list for the split, sorted. A class is present (1), absent (-1), or all its objects are marked
    as difficult (0): `difficult` makes that "unknown", or "absent" as in the published protocols.
    """
    if difficult not in ("unknown", "absent"):
        raise DataError(f"difficult={difficult!r} is not possible; choose 'unknown' or 'absent'")
    base = _year_folder(Path(root))
    lists = _lists(base / "ImageSets" / "Main", split)
    classes = sorted(lists)
    first = lists[classes[0]]
    ids: list[str] = []
    columns = []
    for name in classes:
        lines = _parse(lists[name])
        ids = ids or sorted(lines)
        _check_same(lists[name], lines, first, ids)
        columns.append([lines[i][0] for i in ids])
    signed = np.array(columns, np.int8).T
    if difficult == "absent":
        signed = np.where(signed == 0, np.int8(-1), signed)
    images = [resolve_inside(base / "JPEGImages", f"{i}.jpg") for i in ids]
    require_files(images, first)
    return Dataset(images, Labels.from_dense(signed, classes, ids))


def _year_folder(root: Path) -> Path:
    """The folder that holds ImageSets/Main: `root`, or the only VOC20xx at most two folders below."""
    if (root / "ImageSets" / "Main").is_dir():
        return root
    found = [p for pattern in ("VOC20??", "*/VOC20??") for p in root.glob(pattern)]
    found = sorted(p for p in found if (p / "ImageSets" / "Main").is_dir())
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{root}: holds {', '.join(p.name for p in found)}; give the folder of one of them")
    raise DataError(f"{root}: there is no ImageSets/Main in it; give the folder VOC20xx of an unpacked VOCdevkit")


def _lists(folder: Path, split: str) -> dict[str, Path]:
    """Class -> its list for the split."""
    if not re.fullmatch(r"[A-Za-z0-9-]+", split):
        raise DataError(f"split={split!r} is not possible; choose 'train', 'val' or 'trainval'")
    ending = f"_{split}.txt"
    lists = {p.name.removesuffix(ending): p for p in folder.glob(f"?*{ending}")}
    if not lists:
        known = sorted({p.stem.rpartition("_")[2] for p in folder.glob("?*_?*.txt")})
        raise DataError(f"{folder}: no list of the split {split!r}; there are lists of: {', '.join(known) or 'none'}")
    return lists


def _parse(path: Path) -> dict[str, tuple[int, int]]:
    """Image id -> (1, -1 or 0, line number)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}; unpack the lists again") from None
    lines: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 2 or cells[1] not in _VALUES:
            raise DataError(f"{path}, line {number}: {line.strip()[:80]!r} is not an image id and 1, 0 or -1")
        if cells[0] in lines:
            where = f"listed in line {lines[cells[0]][1]} already"
            raise DataError(f"{path}, line {number}: image {cells[0]!r} is {where}; keep one of them")
        lines[cells[0]] = (_VALUES[cells[1]], number)
    if not lines:
        raise DataError(f"{path}: the list is empty; unpack the lists again")
    return lines


def _check_same(path: Path, lines: dict[str, tuple[int, int]], first: Path, ids: list[str]) -> None:
    """Raise unless the list `path` holds exactly the images `ids` of the list `first`."""
    known = set(ids)
    for name, (_, number) in lines.items():
        if name not in known:
            raise DataError(f"{path}, line {number}: image {name!r} is not in {first}; lists must agree")
    lacking = sorted(known.difference(lines))
    if lacking:
        last = max(number for _, number in lines.values())
        raise DataError(
            f"{path}, line {last}: the list ends without image {lacking[0]!r} ({len(lacking)} lacking), "
            f"which {first} holds; lists must agree"
        )
