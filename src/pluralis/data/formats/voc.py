"""PASCAL VOC: the lists `ImageSets/Main/<class>_<split>.txt`, the photos `JPEGImages`, the boxes `Annotations`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset, require_files
from pluralis.data.safe_io import Inside
from pluralis.errors import DataError
from pluralis.labels import Labels

MAX_BYTES = 1 << 18  # of one annotation file: eighteen times the largest of VOC 2012, train and val
MAX_SIDE = 1e9  # pixels: larger numbers are no coordinates
_VALUES = {"1": 1, "-1": -1, "0": 0}
_SIDES = ("xmin", "ymin", "xmax", "ymax")
Box = tuple[float, float, float, float]


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
    folder = Inside(base / "JPEGImages")
    images = [folder.find(f"{i}.jpg") for i in ids]
    require_files(images, first)
    return Dataset(images, Labels.from_dense(signed, classes, ids))


def areas(root: str | Path, labels: Labels) -> npt.NDArray[np.float64]:
    """[N, C] pixels that the boxes of each class cover together in each image, from `Annotations/<image id>.xml`.

    A pixel under two boxes of one class counts once: ten people in a row are no larger than the picture. Objects that
    are marked as difficult do not count, as in the lists. `root` is that of `read`, and `labels` what it gave; other
    classes in the files, and parts of objects, are passed over. Where no box of a class is drawn its area is 0.
    """
    folder = _year_folder(Path(root)) / "Annotations"
    files = Inside(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: is not there, so no box is known; unpack the annotations beside JPEGImages")
    column = {name: place for place, name in enumerate(labels.classes)}
    found = np.zeros(labels.shape)
    for row, name in enumerate(labels.ids):
        for kind, boxes in _boxes(files.find(f"{name}.xml")).items():
            if kind in column:
                found[row, column[kind]] = _covered(boxes)
    return found


def _boxes(path: Path) -> dict[str, list[Box]]:
    """Class -> its boxes in one annotation file, as left, top, right and bottom edges."""
    boxes: dict[str, list[Box]] = defaultdict(list)
    for number, entry in enumerate(_parse_xml(path).findall("object"), start=1):
        where = f"{path}, object {number}"
        name = (entry.findtext("name") or "").strip()
        if not name:
            raise DataError(f"{where}: it has no name; unpack the annotations again")
        if (entry.findtext("difficult") or "").strip() == "1":
            continue
        try:
            left, top, right, bottom = (float(entry.findtext(f"bndbox/{side}") or "") for side in _SIDES)
        except ValueError:
            raise DataError(f"{where}: its bndbox does not hold the numbers {', '.join(_SIDES)}") from None
        if not (-MAX_SIDE < left <= right < MAX_SIDE and -MAX_SIDE < top <= bottom < MAX_SIDE):
            raise DataError(f"{where}: the box {left:g}, {top:g}, {right:g}, {bottom:g} is not possible")
        boxes[name].append((left, top, right + 1, bottom + 1))  # the last pixel belongs to the box
    return boxes


def _covered(boxes: list[Box]) -> float:
    """The area of the union of the boxes: of all pieces that their edges cut, those that lie in a box."""
    left, top, right, bottom = np.array(boxes).T[:, :, None]
    x, y = np.unique([left, right]), np.unique([top, bottom])
    across, down = (left <= x[:-1]) & (x[1:] <= right), (top <= y[:-1]) & (y[1:] <= bottom)
    inside = down.T.astype(np.float32) @ across > 0
    return float(np.diff(y) @ inside @ np.diff(x))


def _parse_xml(path: Path) -> Any:
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        if not path.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: is not there, so its boxes are not known; unpack the annotations again")
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: over the limit of {MAX_BYTES:,} bytes; it is no annotation of an image")
        return fromstring(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; unpack the annotations again") from None
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: is not plain XML: {words}; unpack the annotations again") from None


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
