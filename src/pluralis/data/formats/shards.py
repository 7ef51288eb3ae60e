"""Tar files of images with their labels beside them: `key.jpg` and `key.json` or `key.cls`, as WebDataset writes them.

`key.json` holds {"labels": {"dog": 1, "car": -1}} or {"positives": […], "negatives": […]}; its other keys are passed
over. `key.cls` holds one class that is present, by its name or by its number among the classes. The key of a file is
its name up to the first dot behind the last slash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pluralis.data.dataset import Dataset
from pluralis.data.formats.table import check_classes
from pluralis.data.image_endings import ENDINGS, is_image
from pluralis.data.image_paths import ImagePaths
from pluralis.data.safe_io import shown
from pluralis.data.safe_json import no_constant, unique_keys
from pluralis.data.shards import Shards
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

MAX_BYTES = 1 << 20  # of the labels of one image


def read(path: str | Path, classes: Sequence[str] | None = None, unlisted: str = "unknown") -> Dataset:
    """Read the images in the tar files `path`, a folder or a pattern like `shards/{000..009}.tar`, and their labels.

    The id of an image is its name in its shard. An image without labels beside it has none. `classes` fixes the
    classes and their order; otherwise they are those that occur, sorted. `unlisted`, "unknown" or "absent", is what
    holds for a class that is not given for an image that has labels.
    """
    if unlisted not in ("unknown", "absent"):
        raise DataError(f"unlisted={unlisted!r} is not possible; choose 'unknown' or 'absent'")
    if classes is not None:
        check_classes(classes)
    shards = Shards(path)
    try:
        images = sorted(filter(is_image, shards.places))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    row_of = _rows(images, path)
    noted = [name for name in shards.places if name.endswith((".json", ".cls")) and _key(name) in row_of]
    files = shards.files(noted)
    given: dict[int, dict[str, int]] = {}
    for number, name in enumerate(noted):
        row, where = row_of[_key(name)], files.name(number)
        if row in given:
            raise DataError(f"{where}: there are labels of {shown(images[row])} in another file too; keep one of them")
        if shards.places[name][2] > MAX_BYTES:
            raise DataError(f"{where}: over the limit of {MAX_BYTES:,} bytes; it holds more than labels")
        parse = _parse_json if name.endswith(".json") else _parse_cls
        given[row] = dict(parse(files.content(number), where, classes))
    names = list(classes) if classes is not None else sorted({name for labels in given.values() for name in labels})
    if not names:
        raise DataError(f"{path}: no image has labels beside it; pack key.json files, or name a label file")
    labels = Labels.from_entries(*_entries(given, names, unlisted), (len(images), len(names)), names, images)
    return Dataset(ImagePaths("", (str(shards.path(name)) for name in images)), labels)


def _key(name: str) -> str:
    head, slash, tail = name.rpartition("/")
    return head + slash + tail.partition(".")[0]


def _rows(images: list[str], path: str | Path) -> dict[str, int]:
    """The row of each key."""
    rows: dict[str, int] = {}
    for row, name in enumerate(images):
        other = rows.setdefault(_key(name), row)
        if other != row:
            both = f"{shown(images[other])} and {shown(name)} have"
            raise DataError(f"{path}: {both} one key, so that labels beside them belong to both; name a label file")
    if not rows:
        raise DataError(f"{path}: there is no image in the tar files; pack files that end with {', '.join(ENDINGS)}")
    return rows


def _entries(
    given: dict[int, dict[str, int]], names: list[str], unlisted: str
) -> tuple[list[int], list[int], list[int]]:
    column = {name: place for place, name in enumerate(names)}
    rows, columns, values = list[int](), list[int](), list[int]()
    for row, labels in given.items():
        told = {**dict.fromkeys(names, -1), **labels} if unlisted == "absent" else labels
        rows += [row] * len(told)
        columns += [column[name] for name in told]
        values += told.values()
    return rows, columns, values


def _parse_cls(content: bytes, where: str, classes: Sequence[str] | None) -> Iterator[tuple[str, int]]:
    try:
        name = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise DataError(f"{where}: is not UTF-8; write the name or the number of a class") from None
    if classes is not None and name not in classes and name.isascii() and name.isdigit() and len(name) < 10:
        name = classes[int(name)] if int(name) < len(classes) else name
    yield _known(name, where, classes), 1


def _parse_json(content: bytes, where: str, classes: Sequence[str] | None) -> Iterator[tuple[str, int]]:
    try:
        entry = json.loads(content, object_pairs_hook=unique_keys, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of a million digits, a million [
        raise DataError(f"{where}: is not JSON: {' '.join(str(error).split())[:200]}; pack it again") from None
    hint = 'write an object like {"labels": {"dog": 1, "car": -1}}'
    if not isinstance(entry, dict) or not {"labels", "positives", "negatives"} & entry.keys():
        raise DataError(f"{where}: there is neither 'labels' nor 'positives' in it; {hint}")
    labels = entry.get("labels", {})
    lists = [(entry.get("positives", []), 1), (entry.get("negatives", []), -1)]
    if not isinstance(labels, dict) or not all(isinstance(names, list) for names, _ in lists):
        raise DataError(f"{where}: labels is no object, or positives or negatives no list; {hint}")
    pairs = [*labels.items(), *((name, value) for names, value in lists for name in names)]
    seen = set()
    for name, value in pairs:
        if isinstance(value, bool) or value not in (1, -1):
            raise DataError(f"{where}: {value!r:.80} is neither 1 present nor -1 absent; leave out what is unknown")
        if _known(name, where, classes) in seen:
            raise DataError(f"{where}: the class {shown(name)} is given twice; keep one of them")
        seen.add(name)
        yield name, int(value)


def _known(name: Any, where: str, classes: Sequence[str] | None) -> str:
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise DataError(f"{where}: {name!r:.80} is no name of a class; give a text without white space around it")
    if classes is not None and name not in classes:
        raise DataError(f"{where}: there is no class {shown(name)}; {nearest(name, list(classes))}")
    return name
