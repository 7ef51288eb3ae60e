"""COCO annotations: the classes of the objects that are drawn in `instances_<split>.json`, image by image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset
from pluralis.data.formats.boxes import MAX_SIDE, Box, covered, is_box
from pluralis.data.formats.listing import check_images, check_unlisted, file_names, from_lists, locate, to_lists
from pluralis.data.safe_io import own_file
from pluralis.data.safe_json import Document, short, write_lists
from pluralis.errors import DataError
from pluralis.labels import Labels

MAX_BYTES = 4 << 30  # four times the largest published file of this kind

# Everything else, outlines above all, is let go while the file is parsed: it is most of the memory.
_KEYS = {"images", "annotations", "categories", "id", "name", "file_name", "image_id", "category_id"}


def read(
    path: str | Path,
    images: str | Path | None = None,
    split: str = "train2014",
    unlisted: str | None = None,
    empty: str = "drop",
    ids: str = "number",
    order: str = "id",
) -> Dataset:
    """Read which classes occur in each image; the id of an image is its number in the file.

    `path` is the folder of a data set with `annotations/instances_<split>.json` and the images in the
    folder `<split>`, or a JSON file of that kind, whose images lie in the folder `images`. Classes are in
    the order of the file and rows are sorted by id as text, both as in Cole et al. (CVPR 2021).

    `unlisted` must be stated: "absent" where somebody looked for every class in every image, as for COCO
    itself, or "unknown". `empty` says what becomes of images without any annotation: "drop" leaves them out, as in
    Cole et al., and a note counts them; "keep" keeps them, all their classes absent or unknown. With `ids` = "file"
    the id of an image is its file name. With `order` = "file" rows are in the order of the file, as known labels are
    drawn in PU-MLC's code.
    """
    unlisted = check_unlisted(unlisted)
    if empty not in ("drop", "keep"):
        raise DataError(f"empty={empty!r} is not possible; choose 'drop' or 'keep'")
    check_ids(ids)
    if order not in ("id", "file"):
        raise DataError(f"order={order!r} is not possible; choose 'id' or 'file'")
    file, folder = _places(Path(path), images, split)
    table = Table(file, _KEYS, MAX_BYTES)
    names = table.categories()
    files = {n: table.text(entry.get("file_name"), f"{where}.file_name") for where, n, entry in table.images()}
    table.refuse_same(files)
    seen = table.annotations(files, names)
    rows = [number for number in files if empty == "keep" or number in seen]
    if order == "id":
        rows.sort(key=str if ids == "number" else lambda n: files[n])
    column = {number: place for place, number in enumerate(names)}
    present = [{column[c] for c in seen.get(number, ())} for number in rows]
    _, found = locate(folder, (files[number] for number in rows), file)
    row_ids = [str(n) if ids == "number" else files[n] for n in rows]
    left = len(files) - len(rows)
    words = f"{file}: {left:,} of {len(files):,} images have no annotation and are left out"
    notes = (f"{words}; data.options.empty=keep keeps them",) if left else ()
    return Dataset(found, from_lists(present, unlisted, list(names.values()), row_ids), notes=notes)


def write(
    path: str | Path, data: Dataset | Labels, unlisted: str | None = None, images: str | Path | None = None
) -> None:
    """Write one annotation, without a box, for each label that is present.

    `unlisted` must be stated, and is what to say when the file is read again: "unknown" where no label is absent,
    "absent" where none is unknown. The format cannot hold both kinds; `lvis` can. Images are numbered by their ids
    where these are whole numbers, else from 1: read again with ids="file". Images without a present label are
    there too: read again with empty="keep". File names start from the folder `images`.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    numbers, names = numbered(labels), file_names(data, images)
    listed = to_lists(labels, unlisted)
    number = count(1)
    write_lists(
        path,
        {
            "images": ({"id": i, "file_name": name} for i, name in zip(numbers, names, strict=True)),
            "annotations": (
                {"id": next(number), "image_id": i, "category_id": c + 1, "iscrowd": 0}
                for i, present in zip(numbers, listed, strict=True)
                for c in present or ()
            ),
            "categories": ({"id": c + 1, "name": name} for c, name in enumerate(labels.classes)),
        },
    )


def areas(
    path: str | Path, labels: Labels, images: str | Path | None = None, split: str = "train2014", ids: str = "number"
) -> npt.NDArray[np.float64]:
    """[N, C] pixels that the boxes of each class cover together in each image; 0 where none is drawn.

    A pixel under two boxes of one class counts once; the box of a crowd counts as any other. The options are those
    of `read`, and `labels` what it gave: images and classes that these do not have are passed over.
    """
    check_ids(ids)
    file, _ = _places(Path(path), images, split)
    table = Table(file, {*_KEYS, "bbox"}, MAX_BYTES)
    row, column = ({name: place for place, name in enumerate(names)} for names in (labels.ids, labels.classes))
    names = table.categories()
    files = {n: table.text(entry.get("file_name"), f"{where}.file_name") for where, n, entry in table.images()}
    boxes: dict[tuple[int, int], list[Box]] = {}
    for where, image, category, entry in table.drawn(files, names):
        place = row.get(str(image) if ids == "number" else files[image]), column.get(names[category])
        if place[0] is not None and place[1] is not None and entry.get("bbox") is not None:
            boxes.setdefault((place[0], place[1]), []).append(table.box(entry["bbox"], f"{where}.bbox"))
    found = np.zeros(labels.shape)
    for cell, drawn in boxes.items():
        found[cell] = covered(drawn)
    return found


def check_ids(ids: str) -> None:
    if ids not in ("number", "file"):
        raise DataError(f"ids={ids!r} is not possible; choose 'number' or 'file'")


def numbered(labels: Labels) -> list[int]:
    """The ids as numbers where all are whole numbers, else 1, 2, 3 …"""
    if all(re.fullmatch(r"0|[1-9][0-9]{0,17}", name) for name in labels.ids):
        return [int(name) for name in labels.ids]
    return list(range(1, len(labels) + 1))


def _places(path: Path, images: str | Path | None, split: str) -> tuple[Path, Path]:
    """The annotation file and the folder of its images."""
    if not path.is_dir():
        return path, check_images(images, path)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise DataError(f"split={split!r} is not possible; give a name such as 'train2014' or 'val2014'")
    file = path / "annotations" / f"instances_{split}.json"
    if not file.is_file():
        known = sorted(p.stem.removeprefix("instances_") for p in path.glob("annotations/instances_*.json"))
        raise DataError(f"{path}: no annotations of the split {split!r}; there are: {', '.join(known[:8]) or 'none'}")
    return own_file(path, file), check_images(path / split if images is None else images, file)


class Table(Document):
    """The three lists of one file, checked entry by entry."""

    def categories(self) -> dict[int, str]:
        """Number -> name of every class, in the order of the file."""
        names: dict[int, str] = {}
        taken: set[str] = set()
        for where, entry in self._entries("categories"):
            number = self.whole(entry.get("id"), f"{where}.id")
            name = self.text(entry.get("name"), f"{where}.name")
            if number in names or name in taken:
                raise self.error(f"{where}: the id {number} or the name {short(name)} is used twice; keep one of them")
            names[number] = name
            taken.add(name)
        if not names:
            raise self.error("categories is empty; a data set needs at least one class")
        return names

    def images(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Place, number and entry of every image."""
        known: set[int] = set()
        for where, entry in self._entries("images"):
            number = self.whole(entry.get("id"), f"{where}.id")
            if number in known:
                raise self.error(f"{where}.id: the image {number} is listed twice; keep one of them")
            known.add(number)
            yield where, number, entry

    def refuse_same(self, files: dict[int, str]) -> None:
        """Raise where two images are one file: their labels may differ."""
        first: dict[str, int] = {}
        for number, name in files.items():
            other = first.setdefault(name, number)
            if other != number:
                raise self.error(f"the images {other} and {number} have the same file_name {short(name)}; keep one")

    def annotations(self, files: dict[int, str], names: dict[int, str]) -> dict[int, set[int]]:
        """Number of an image -> numbers of the classes in it, for the images that have an annotation."""
        seen: dict[int, set[int]] = {}
        for _, image, category, _ in self.drawn(files, names):
            seen.setdefault(image, set()).add(category)
        return seen

    def drawn(self, files: dict[int, str], names: dict[int, str]) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
        """Place, image, class and entry of every annotation."""
        for where, entry in self._entries("annotations"):
            image = self.whole(entry.get("image_id"), f"{where}.image_id")
            category = self.whole(entry.get("category_id"), f"{where}.category_id")
            if image not in files:
                raise self.error(f"{where}.image_id: there is no image {image} in images; add it")
            if category not in names:
                raise self.error(f"{where}.category_id: there is no class {category} in categories; add it")
            yield where, image, category, entry

    def box(self, value: Any, where: str) -> Box:
        """The edges of [left, top, width, height]."""
        sides = self.listed(value, where)
        if len(sides) != 4 or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in sides):
            raise self.error(f"{where} is {short(value)}; give four numbers: left, top, width and height")
        left, top, width, height = sides
        # First by themselves: a whole number of hundreds of digits cannot be added to a fraction.
        if not all(abs(n) < MAX_SIDE for n in sides) or not is_box(left, top, left + width, top + height):
            raise self.error(f"{where}: the box {short(value)} is not possible; give a width and height of at least 0")
        return float(left), float(top), float(left + width), float(top + height)

    def _entries(self, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if not isinstance(self.content, dict):
            raise self.error("does not hold an object with images, annotations and categories; get the file again")
        return self.objects(self.content.get(key), key)
