"""LVIS, versions 0.5 and 1: COCO-like annotations in which each image was searched for some classes only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from pluralis.data.dataset import Dataset, look_for
from pluralis.data.formats.coco import Table, check_ids, numbered
from pluralis.data.formats.listing import check_images, file_names, refuse_twice
from pluralis.data.safe_io import resolve_inside
from pluralis.data.safe_json import short, write_lists
from pluralis.errors import DataError
from pluralis.labels import Labels

_KEYS = {
    *("images", "annotations", "categories", "id", "name", "file_name", "coco_url", "image_id", "category_id"),
    *("neg_category_ids", "not_exhaustive_category_ids"),
}


def read(path: str | Path, images: str | Path | None = None, ids: str = "number") -> Dataset:
    """Read what is known of each image under the federated rule of Gupta et al. (CVPR 2019).

    A class is present where an object of it is annotated, absent where `neg_category_ids` lists it, and unknown
    otherwise: `not_exhaustive_category_ids` says that more objects may be there than were drawn, which changes
    nothing for a class that is drawn and leaves one that is not drawn unknown.

    `path` is the JSON file. The file of an image is its `file_name` (version 0.5; the prefix `COCO_…2014_` is left
    out where only the file of 2017 is there), else the last two parts of its `coco_url` (version 1), such as
    `train2017/000000391895.jpg`, or the last part alone where that is what lies in the folder `images`. Classes
    are in the order of the file, rows sorted by id as text; with `ids` = "file" the id is the name below `images`.
    """
    check_ids(ids)
    folder = check_images(images, path)
    table = Table(path, _KEYS)
    names = table.categories()
    column = {number: place for place, number in enumerate(names)}
    files: dict[int, str] = {}
    paths: dict[int, Path] = {}
    absent: dict[int, set[int]] = {}
    for where, number, entry in table.images():
        files[number], paths[number] = _file(table, folder, entry, where)
        absent[number] = set(_classes(table, entry, where, "neg_category_ids", names))
        list(_classes(table, entry, where, "not_exhaustive_category_ids", names))  # checked, and no label follows
    seen = table.annotations(files, names)
    order = sorted(files, key=str if ids == "number" else lambda n: files[n])
    row_ids = [str(n) if ids == "number" else files[n] for n in order]
    found = [paths[number] for number in order]
    refuse_twice(found, [f"image {number}" for number in order], path)
    counts, known = [0], list[tuple[int, int]]()
    for number in order:
        present = seen.get(number, set())
        both = present & absent[number]
        if both:
            name = names[min(both)]
            raise table.error(
                f"image {number}: the class {short(name)} is annotated and also in neg_category_ids; keep one"
            )
        known += sorted([(column[c], 1) for c in present] + [(column[c], -1) for c in absent[number]])
        counts.append(len(known))
    columns, values = np.array(known, np.int32).reshape(-1, 2).T
    labels = Labels(counts, columns, values, list(names.values()), row_ids)
    return Dataset(look_for(found, path), labels)


def write(path: str | Path, data: Dataset | Labels, images: str | Path | None = None) -> None:
    """Write labels of all three kinds: present ones as annotations without a box, absent ones as `neg_category_ids`.

    Images are numbered by their ids where these are whole numbers, else from 1: read again with ids="file". File
    names start from the folder `images`.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    numbers, files = numbered(labels), file_names(data, images)
    number = count(1)

    def pictures() -> Iterator[dict[str, Any]]:
        for row, (image, name) in enumerate(zip(numbers, files, strict=True)):
            absent = [int(c) + 1 for c in labels.negatives(row)]
            yield {"id": image, "file_name": name, "neg_category_ids": absent, "not_exhaustive_category_ids": []}

    write_lists(
        path,
        {
            "images": pictures(),
            "annotations": (
                {"id": next(number), "image_id": image, "category_id": int(c) + 1}
                for row, image in enumerate(numbers)
                for c in labels.positives(row)
            ),
            "categories": ({"id": c + 1, "name": name} for c, name in enumerate(labels.classes)),
        },
    )


def _file(table: Table, folder: Path, entry: dict[str, Any], where: str) -> tuple[str, Path]:
    """The name of an image's file below the folder, and its path."""
    if entry.get("file_name") is not None:
        name = table.text(entry["file_name"], f"{where}.file_name")
        candidates = [name, name[-16:]] if name.startswith("COCO_") else [name]
    elif entry.get("coco_url") is not None:
        parts = table.text(entry["coco_url"], f"{where}.coco_url").split("/")
        candidates = ["/".join(parts[-2:]), parts[-1]]
    else:
        raise table.error(f"{where} has neither file_name nor coco_url; get the annotations again")
    try:
        found = [(name, resolve_inside(folder, name)) for name in candidates]
    except DataError as error:
        raise table.error(f"{where}: {error}") from None
    return next((pair for pair in found if pair[1].is_file()), found[0])


def _classes(table: Table, entry: dict[str, Any], where: str, key: str, names: dict[int, str]) -> Iterator[int]:
    for place, value in enumerate(table.listed(entry.get(key), f"{where}.{key}")):
        category = table.whole(value, f"{where}.{key}[{place}]")
        if category not in names:
            raise table.error(f"{where}.{key}[{place}]: there is no class {category} in categories; add it")
        yield category
