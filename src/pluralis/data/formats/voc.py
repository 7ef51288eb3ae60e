"""PASCAL VOC: the lists `ImageSets/Main/<class>_<split>.txt`, the photos `JPEGImages`, the objects `Annotations`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset, look_for
from pluralis.data.formats.boxes import Box, covered
from pluralis.data.formats.listing import check_unlisted, locate, refuse_twice
from pluralis.data.formats.table import check_classes
from pluralis.data.formats.text_lines import lines
from pluralis.data.formats.voc_xml import Annotation, box
from pluralis.data.safe_io import Inside, own_file, shown
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

_VALUES = {"1": 1, "-1": -1, "0": 0}


def read(
    root: str | Path,
    split: str = "train",
    difficult: str = "unknown",
    source: str = "lists",
    unlisted: str | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Read the images and labels of one split, "train", "val", "trainval" or another that has lists.

    `root` is the folder VOC20xx, or one above it that holds a single VOC20xx. Rows are sorted by image id.

    `source` = "lists" takes the lists `ImageSets/Main/<class>_<split>.txt`, which say everything: the classes are
    those with a list for the split, sorted, each present (1), absent (-1), or with all its objects marked as
    difficult (0): `difficult` makes that "unknown", or "absent" as in the published protocols.

    `source` = "xml" takes the objects in `Annotations/<image id>.xml`, for data sets of one's own that labelling
    tools write in this format, of the images in `ImageSets/Main/<split>.txt`, or of all with split="all". Then
    `unlisted` must be stated: a class without any object is "absent" if somebody looked for every class in every
    image, as for VOC itself, else "unknown". `classes` fixes the classes; otherwise they are those that occur, sorted.
    The photo is the one called like the annotation or, where there is none, the one that it names.
    """
    if difficult not in ("unknown", "absent"):
        raise DataError(f"difficult={difficult!r} is not possible; choose 'unknown' or 'absent'")
    if source not in ("lists", "xml"):
        raise DataError(f"source={source!r} is not possible; choose 'lists' or 'xml'")
    if source == "xml":
        return _read_xml(Path(root), split, difficult, check_unlisted(unlisted), classes)
    if unlisted is not None or classes is not None:
        raise DataError("the lists of VOC say what is absent, and name the classes; unlisted and classes go with xml")
    base = _year_folder(Path(root))
    lists = _lists(base, split)
    names = sorted(lists)
    first = lists[names[0]]
    ids: list[str] = []
    columns = []
    for name in names:
        found = _parse(lists[name])
        ids = ids or sorted(found)
        _check_same(lists[name], found, first, ids)
        columns.append([found[i][0] for i in ids])
    signed = np.array(columns, np.int8).T
    if difficult == "absent":
        signed = np.where(signed == 0, np.int8(-1), signed)
    images = locate(base / "JPEGImages", (f"{i}.jpg" for i in ids), first)[1]
    return Dataset(images, Labels.from_dense(signed, names, ids))


def areas(root: str | Path, labels: Labels) -> npt.NDArray[np.float64]:
    """[N, C] pixels that the boxes of each class cover together in each image, from `Annotations/<image id>.xml`.

    A pixel under two boxes of one class counts once. Objects that are marked as difficult do not count, as in the
    lists. `root` is that of `read`, and `labels` what it gave; other classes in the files, and parts of objects, are
    passed over. Where no box of a class is drawn its area is 0.
    """
    folder = _year_folder(Path(root), "Annotations")
    files = Inside(folder / "Annotations")
    column = {name: place for place, name in enumerate(labels.classes)}
    found = np.zeros(labels.shape)
    for row, name in enumerate(labels.ids):
        for kind, boxes in _boxes(files.find(f"{name}.xml")).items():
            if kind in column:
                found[row, column[kind]] = covered(boxes)
    return found


def _boxes(path: Path) -> dict[str, list[Box]]:
    """Class -> its boxes in one annotation file."""
    boxes: dict[str, list[Box]] = defaultdict(list)
    for thing in Annotation(path).things():
        if not thing.difficult:
            boxes[thing.name].append(box(thing))
    return boxes


def _read_xml(root: Path, split: str, difficult: str, unlisted: str, classes: Sequence[str] | None) -> Dataset:
    if classes is not None:
        check_classes(classes)
    base = _year_folder(root, "Annotations")
    files, photos = Inside(base / "Annotations"), Inside(base / "JPEGImages")
    ids = sorted(_ids(base, split))
    images, seen, wanted = list[Path](), list[dict[str, int]](), set(classes or ())
    for name in ids:
        content = Annotation(files.find(f"{name}.xml"))
        images.append(_photo(photos, content, name))
        seen.append({})
        for thing in content.things():
            if classes is not None and thing.name not in wanted:
                known = nearest(thing.name[:80], list(classes))
                raise DataError(f"{thing.where}: there is no class {thing.name[:80]!r}; {known}")
            if not thing.difficult:
                seen[-1][thing.name] = 1
            else:
                seen[-1].setdefault(thing.name, 0 if difficult == "unknown" else -1)
    names = sorted(set().union(*seen)) if classes is None else list(classes)
    if not names:
        raise DataError(f"{base / 'Annotations'}: there is no object in the files; draw some, or give classes")
    refuse_twice(images, [f"{name}.xml" for name in ids], base / "Annotations")
    number = {name: place for place, name in enumerate(names)}
    if unlisted == "absent":
        seen = [{**dict.fromkeys(names, -1), **row} for row in seen]
    entries = [(row, number[name], value) for row, given in enumerate(seen) for name, value in given.items()]
    rows, columns, values = np.array(entries, np.int64).reshape(-1, 3).T
    labels = Labels.from_entries(rows, columns, values, (len(ids), len(names)), names, ids)
    return Dataset(look_for(images, base / "Annotations"), labels)


def _photo(photos: Inside, content: Annotation, name: str) -> Path:
    """The file called like the annotation or, where it is not there, the one that the annotation names.

    Not the other way round: whoever renames files often leaves the old name inside, and that may be another photo now.
    """
    try:
        named = photos.find(content.filename) if content.filename else None
    except DataError as error:
        raise DataError(f"{content.path}: filename: {error}") from None
    own = [photos.find(name + ending) for ending in dict.fromkeys((".jpg", named.suffix if named else ".jpg"))]
    return next((path for path in (*own, named) if path is not None and path.is_file()), own[0])


def _ids(base: Path, split: str) -> Iterator[str]:
    """The images of a split."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise DataError(f"split={split!r} is not possible; choose 'train', 'val', 'trainval' or 'all'")
    if split == "all":
        yield from (path.stem for path in (base / "Annotations").glob("*.xml"))
        return
    file = base / "ImageSets" / "Main" / f"{split}.txt"
    if not file.is_file():
        raise DataError(f"{file}: is not there; name the images in it, one a line, or take them all with split=all")
    first: dict[str, int] = {}
    for number, name in lines(own_file(base, file)):
        if first.setdefault(name, number) != number:
            raise DataError(f"{file}, line {number}: image {name[:80]!r} is in line {first[name]} too; keep one")
        yield name


def _year_folder(root: Path, holds: str = "ImageSets/Main") -> Path:
    """The folder that holds another one: `root`, or the only VOC20xx at most two folders below."""
    if (root / holds).is_dir():
        return root
    found = [p for pattern in ("VOC20??", "*/VOC20??") for p in root.glob(pattern)]
    found = sorted(p for p in found if (p / holds).is_dir())
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{root}: holds {', '.join(p.name for p in found)}; give the folder of one of them")
    raise DataError(f"{root}: there is no {holds} in it; give the folder VOC20xx of an unpacked VOCdevkit")


def _lists(base: Path, split: str) -> dict[str, Path]:
    """Class -> its list for the split."""
    folder = base / "ImageSets" / "Main"
    if not re.fullmatch(r"[A-Za-z0-9-]+", split):  # no underscore: it parts the class from the split
        raise DataError(f"split={split!r} is not possible; choose 'train', 'val' or 'trainval'")
    ending = f"_{split}.txt"
    lists = {p.name.removesuffix(ending): own_file(base, p) for p in folder.glob(f"?*{ending}")}
    if not lists:
        known = sorted({p.stem.rpartition("_")[2] for p in folder.glob("?*_?*.txt")})
        raise DataError(
            f"{folder}: no list of the split {split!r}; there are lists of: {', '.join(known[:8]) or 'none'}"
        )
    return lists


def _parse(path: Path) -> dict[str, tuple[int, int]]:
    """Image id -> (1, -1 or 0, line number)."""
    found: dict[str, tuple[int, int]] = {}
    for number, line in lines(path):
        cells = line.split()
        if len(cells) != 2 or cells[1] not in _VALUES:
            raise DataError(f"{path}, line {number}: {line[:80]!r} is not an image id and 1, 0 or -1")
        if cells[0] in found:
            where = f"listed in line {found[cells[0]][1]} already"
            raise DataError(f"{path}, line {number}: image {shown(cells[0])} is {where}; keep one of them")
        found[cells[0]] = (_VALUES[cells[1]], number)
    if not found:
        raise DataError(f"{path}: the list is empty; unpack the lists again")
    return found


def _check_same(path: Path, lines: dict[str, tuple[int, int]], first: Path, ids: list[str]) -> None:
    """Raise unless the list `path` holds exactly the images `ids` of the list `first`."""
    known = set(ids)
    for name, (_, number) in lines.items():
        if name not in known:
            raise DataError(f"{path}, line {number}: image {shown(name)} is not in {first}; lists must agree")
    lacking = sorted(known.difference(lines))
    if lacking:
        last = max(number for _, number in lines.values())
        raise DataError(
            f"{path}, line {last}: the list ends without image {shown(lacking[0])} ({len(lacking)} lacking), "
            f"which {first} holds; lists must agree"
        )
