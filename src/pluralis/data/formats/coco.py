"""COCO annotations: the classes of the objects that are drawn in `instances_<split>.json`, image by image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pluralis.data.dataset import Dataset, require_files
from pluralis.data.safe_io import resolve_inside
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
) -> Dataset:
    """Read which classes occur in each image; the id of an image is its number in the file.

    `path` is the folder of a data set with `annotations/instances_<split>.json` and the images in the
    folder `<split>`, or a JSON file of that kind, whose images lie in the folder `images`. Classes are in
    the order of the file and rows are sorted by id as text, both as in Cole et al. (CVPR 2021).

    `unlisted` must be stated: "absent" where somebody looked for every class in every image, as for COCO
    itself, or "unknown". `empty` says what becomes of images without any annotation, "drop" or "keep".
    """
    if unlisted not in ("unknown", "absent"):
        hint = "say 'absent' if every class was looked for in every image, as for COCO, else 'unknown'"
        raise DataError(f"unlisted={unlisted!r} is not possible; {hint}")
    if empty not in ("drop", "keep"):
        raise DataError(f"empty={empty!r} is not possible; choose 'drop' or 'keep'")
    file, folder = _places(Path(path), images, split)
    table = _Table(file)
    names = table.categories()
    files = table.images()
    seen = table.annotations(files, names)
    numbers = sorted(seen if empty == "drop" else files, key=str)
    signed = np.full((len(numbers), len(names)), -1 if unlisted == "absent" else 0, np.int8)
    column = {number: place for place, number in enumerate(names)}
    for row, number in enumerate(numbers):
        signed[row, [column[c] for c in seen.get(number, ())]] = 1
    found = [resolve_inside(folder, files[number]) for number in numbers]
    require_files(found, file)
    return Dataset(found, Labels.from_dense(signed, list(names.values()), [str(n) for n in numbers]))


def _places(path: Path, images: str | Path | None, split: str) -> tuple[Path, Path]:
    """The annotation file and the folder of its images."""
    if path.is_dir():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
            raise DataError(f"split={split!r} is not possible; give a name such as 'train2014' or 'val2014'")
        file = path / "annotations" / f"instances_{split}.json"
        if not file.is_file():
            known = sorted(p.stem.removeprefix("instances_") for p in path.glob("annotations/instances_*.json"))
            raise DataError(f"{path}: no annotations of the split {split!r}; there are: {', '.join(known) or 'none'}")
        folder = path / split if images is None else Path(images)
    else:
        if images is None:
            raise DataError(f"{path}: the images of a single file are not known; name their folder (--images DIR)")
        file, folder = path, Path(images)
    if not folder.is_dir():
        raise DataError(f"there is no image folder {str(folder)!r}; give the one that the file names start from")
    return file, folder


class _Table:
    """The three lists of one file, checked entry by entry."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.content = self._parse()

    def categories(self) -> dict[int, str]:
        """Number -> name of every class, in the order of the file."""
        names: dict[int, str] = {}
        taken: set[str] = set()
        for where, entry in self._entries("categories"):
            number, name = self._number(entry, where, "id"), self._text(entry, where, "name")
            if number in names or name in taken:
                raise self._error(f"{where}: the id {number} or the name {name!r} is used twice; keep one of them")
            names[number] = name
            taken.add(name)
        if not names:
            raise self._error("categories is empty; a data set needs at least one class")
        return names

    def images(self) -> dict[int, str]:
        """Number -> file name of every image."""
        files: dict[int, str] = {}
        for where, entry in self._entries("images"):
            number = self._number(entry, where, "id")
            if number in files:
                raise self._error(f"{where}.id: the image {number} is listed twice; keep one of them")
            files[number] = self._text(entry, where, "file_name")
        return files

    def annotations(self, files: dict[int, str], names: dict[int, str]) -> dict[int, set[int]]:
        """Number of an image -> numbers of the classes in it, for the images that have an annotation."""
        seen: dict[int, set[int]] = {}
        for where, entry in self._entries("annotations"):
            image, category = self._number(entry, where, "image_id"), self._number(entry, where, "category_id")
            if image not in files:
                raise self._error(f"{where}.image_id: there is no image {image} in images; add it")
            if category not in names:
                raise self._error(f"{where}.category_id: there is no class {category} in categories; add it")
            seen.setdefault(image, set()).add(category)
        return seen

    def _parse(self) -> dict[str, Any]:
        try:
            if not self.file.is_file():  # also keeps away from pipes and devices, on which reading may hang
                raise self._error("is not there, or not a plain file; check the path")
            if self.file.stat().st_size > MAX_BYTES:
                raise self._error(f"over the limit of {MAX_BYTES:,} bytes; split it, or take the outlines out")
            content = json.loads(self.file.read_bytes(), object_pairs_hook=self._object)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}; check the path") from None
        except (ValueError, RecursionError) as error:  # not JSON, not text, a number of a million digits …
            words = " ".join(str(error).split())[:200]
            raise self._error(f"is not JSON: {words}; get the file again") from None
        if not isinstance(content, dict):
            raise self._error("does not hold an object with images, annotations and categories")
        return content

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        for key, value in pairs:
            if key in _KEYS:
                if key in entry:
                    raise self._error(f"the key {key!r} is given twice in one object; keep one of them")
                entry[key] = value
        return entry

    def _entries(self, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        entries = self.content.get(key)
        if not isinstance(entries, list):
            raise self._error(f"{key} is {'not a list' if key in self.content else 'lacking'}; give a list of objects")
        for place, entry in enumerate(entries):
            where = f"{key}[{place}]"
            if not isinstance(entry, dict):
                raise self._error(f"{where} is not an object; give one with an id")
            yield where, entry

    def _number(self, entry: dict[str, Any], where: str, key: str) -> int:
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(f"{where}.{key} is {_short(value)}; give a whole number")
        return value

    def _text(self, entry: dict[str, Any], where: str, key: str) -> str:
        value = entry.get(key)
        if not isinstance(value, str) or not value:
            raise self._error(f"{where}.{key} is {_short(value)}; give a text that is not empty")
        return value

    def _error(self, message: str) -> DataError:
        return DataError(f"{self.file}: {message}")


def _short(value: Any) -> str:
    shown = "lacking" if value is None else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
