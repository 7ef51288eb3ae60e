"""CUB-200-2011 (Wah et al., 2011): 312 attributes of birds as classes, with the annotators' certainty."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import check_images, locate
from pluralis.data.formats.text_lines import lines
from pluralis.data.safe_io import own_file
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels

_SPLITS = {"train": "1", "test": "0"}
_CERTAINTIES = ("1", "2", "3", "4")  # of certainties.txt: not visible, guessing, probably, definitely
_NOT_VISIBLE = _CERTAINTIES[0]


def read(path: str | Path, split: str = "train", not_visible: str = "unknown") -> Dataset:
    """Read the attributes of the images of one split, "train", "test" or "all".

    `path` is the folder CUB_200_2011, with `images.txt`, `train_test_split.txt`, `attributes/` and `images/`. A class
    is present or absent as `image_attribute_labels.txt` says. Where the annotator called the part of the bird not
    visible (certainty 1) nobody saw whether the attribute holds, and it is unknown; `not_visible` = "as-given" takes
    the 0 or 1 beside it, as Cole et al. (CVPR 2021) do. A pair that no line gives is unknown.

    The id of an image is its name; rows are in the order of the images' numbers, as in the published splits.
    """
    if split not in (*_SPLITS, "all"):
        raise DataError(f"split={split!r} is not possible; choose 'train', 'test' or 'all'")
    if not_visible not in ("unknown", "as-given"):
        raise DataError(f"not_visible={not_visible!r} is not possible; choose 'unknown' or 'as-given'")
    root = Path(path)
    names = _table(own_file(root, root / "images.txt"))
    classes = _table(_attributes(root))
    if split != "all":
        parts = _table(own_file(root, root / "train_test_split.txt"), unique=False)
        lacking = names.keys() - parts.keys()
        if lacking:
            raise DataError(f"{root / 'train_test_split.txt'}: the image {min(lacking)} is lacking; unpack it again")
        wrong = [number for number, part in parts.items() if part not in _SPLITS.values()]
        if wrong:
            words = f"the image {wrong[0]} has {parts[wrong[0]][:80]!r}, neither 1 (train) nor 0 (test)"
            raise DataError(f"{root / 'train_test_split.txt'}: {words}; unpack it again")
        names = {number: name for number, name in names.items() if parts[number] == _SPLITS[split]}
    order = sorted(names)
    labels = _labels(root, order, names, classes, not_visible == "unknown")
    folder = check_images(root / "images", root / "images.txt")
    return Dataset(locate(folder, (names[number] for number in order), root / "images.txt")[1], labels)


def _labels(root: Path, order: list[int], names: dict[int, str], classes: dict[int, str], hide: bool) -> Labels:
    file = own_file(root, root / "attributes" / "image_attribute_labels.txt")
    row = {str(number): place for place, number in enumerate(order)}
    column = {str(number): place for place, number in enumerate(sorted(classes))}
    every = _numbers(root / "images.txt")
    rows, columns, values = array("i"), array("i"), array("b")
    for number, text in lines(file):
        cells = text.split()  # a few published lines have a number too many at the end: only the time lies there
        if len(cells) < 4 or cells[1] not in column or cells[2] not in ("0", "1") or cells[3] not in _CERTAINTIES:
            raise DataError(
                f"{file}, line {number}: {text[:80]!r} is not an image, an attribute, 0 or 1, and a certainty from "
                "1 to 4; unpack the data set again"
            )
        at = row.get(cells[0])
        if at is None:
            if cells[0] not in every:
                raise DataError(f"{file}, line {number}: there is no image {cells[0][:20]} in images.txt; unpack again")
        elif not (hide and cells[3] == _NOT_VISIBLE):
            rows.append(at)
            columns.append(column[cells[1]])
            values.append(1 if cells[2] == "1" else -1)
    at_row, at_column, value = (np.array(part, np.int64) for part in (rows, columns, values))
    shape, named = (len(order), len(classes)), [classes[number] for number in sorted(classes)]
    try:
        return Labels.from_entries(at_row, at_column, value, shape, named, [names[number] for number in order])
    except LabelError as error:
        raise DataError(f"{file}: {error}") from None


def _attributes(root: Path) -> Path:
    """The archive has the names of the attributes beside the folder CUB_200_2011; some people move them inside."""
    places = [root / "attributes" / "attributes.txt", root / "attributes.txt", root.parent / "attributes.txt"]
    found = next((place for place in places if place.is_file()), places[0])
    return own_file(root.parent if found == places[2] else root, found)


def _numbers(path: Path) -> set[str]:
    return {str(number) for number in _table(path)}


def _table(path: Path, unique: bool = True) -> dict[int, str]:
    """Number -> text of each line `<number> <text>`."""
    found: dict[int, str] = {}
    seen: set[str] = set()
    for line, text in lines(path):
        number, _, rest = text.partition(" ")
        name = rest.strip()
        if not (number.isascii() and number.isdigit() and len(number) < 10) or not name:
            raise DataError(f"{path}, line {line}: {text[:80]!r} is not a number and a name; unpack the data set again")
        if int(number) in found or (unique and name in seen):
            raise DataError(f"{path}, line {line}: {text[:80]!r} is there already; keep one of the lines")
        found[int(number)] = name
        seen.add(name)
    if not found:
        raise DataError(f"{path}: the list is empty; unpack the data set again")
    return found
