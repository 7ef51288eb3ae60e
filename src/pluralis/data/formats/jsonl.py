"""Labels as JSON lines: an object for each image, in one of two shapes, in UTF-8.

    {"image": "a.jpg", "labels": {"dog": 1, "car": -1}}
    {"image": "b.jpg", "positives": ["dog"], "negatives": ["car"]}

1 is present, -1 absent, null unknown; either list may be left out, and so may all three: an image without a
label. A 0 means absent to some and unknown to others: `unlisted` says what it means here. The first line may
be `{"classes": ["car", "dog"]}`, which fixes the classes and their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import file_names
from pluralis.data.formats.table import Table, check_classes, rows_of
from pluralis.data.formats.text_lines import MAX_LINE
from pluralis.data.safe_json import no_constant, short, unique_keys
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, nearest, shown
from pluralis.labels import Labels

_KEYS = ("image", "labels", "positives", "negatives")
_HALF = re.compile("[\ud800-\udfff]")


def read(
    path: str | Path,
    images: str | Path,
    classes: Sequence[str] | None = None,
    unlisted: str | None = None,
    extra: str = "refuse",
) -> Dataset:
    """Read the labels in `path` of images below the folder `images`; the id of an image is its name there.

    `classes` fixes the classes and their order, before a line that does; otherwise they are all labels in the file,
    sorted. `unlisted`, "unknown" or "absent", is what a 0 means and what holds for a class that the line of an image
    does not name (unless stated: unknown). Keys that are not described above may be misspelt and are an error, unless
    `extra="ignore"`.
    """
    if extra not in ("refuse", "ignore"):
        raise DataError(f"extra={extra!r} is not possible; choose 'refuse' or 'ignore'")
    table = Table(path, images, classes, unlisted)
    lines: list[int] = []  # of each row
    for line, entry in _entries(path):
        if "classes" in entry and "image" not in entry and not lines:
            _fix_classes(table, entry["classes"], line)
            continue
        _check_keys(table, entry, line, extra)
        row = table.row(entry["image"], line)
        if row < len(lines):
            raise table.error(line, f"image {shown(entry['image'])} is in line {lines[row]} already; keep one of them")
        lines.append(line)
        for name, value in _given(table, entry, line):
            table.add(row, table.column(name, line), value, line)
    return table.dataset(complete=unlisted == "absent", sort_classes=not table.fixed)


def write(path: str | Path, data: Dataset | Labels, images: str | Path | None = None) -> None:
    """Write a line with the classes and one for each image; `path` holds the old file or the whole new one.

    An image is named by its path below the folder `images`; without, by its id if that is where its path ends.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    classes, names = labels.classes, file_names(data, images)
    with whole_text(path) as file:
        file.write(json.dumps({"classes": classes}, ensure_ascii=False) + "\n")
        for name, columns, values in rows_of(labels, names):
            given = {classes[column]: value for column, value in zip(columns, values, strict=True)}
            file.write(json.dumps({"image": name, "labels": given}, ensure_ascii=False) + "\n")


def _fix_classes(table: Table, classes: Any, line: int) -> None:
    if not table.fixed:
        try:
            check_classes(classes)
        except DataError as error:
            raise table.error(line, str(error)[:200]) from None
        table.classes, table.fixed = {name: number for number, name in enumerate(classes)}, True


def _check_keys(table: Table, entry: dict[str, Any], line: int, extra: str) -> None:
    if not isinstance(entry.get("image"), str):
        raise table.error(line, "there is no text under the key 'image'; name the image file")
    unknown = [key for key in entry if key not in _KEYS]
    if unknown and extra == "refuse":
        hint = "extra='ignore' passes over such keys"
        raise table.error(line, f"there is no key {short(unknown[0])}; {nearest(unknown[0], _KEYS)}; {hint}")
    if "labels" in entry and ("positives" in entry or "negatives" in entry):
        raise table.error(line, "labels and positives or negatives are two shapes of one thing; keep one of them")


def _given(table: Table, entry: dict[str, Any], line: int) -> Iterator[tuple[str, int]]:
    """The classes that an object names, and 1, -1 or 0 for each."""
    labels = entry.get("labels", {})
    if not isinstance(labels, dict):
        raise table.error(line, f"labels is {short(labels)}; give an object of class names and 1 or -1")
    for name, value in labels.items():
        if value is None:
            yield _name(table, name, "labels", line), 0
        elif isinstance(value, bool) or value not in (1, -1, 0):
            raise table.error(line, f"labels[{short(name)}] is {short(value)}; write 1 present or -1 absent")
        else:
            yield _name(table, name, "labels", line), int(value) or table.zero(line)
    for key, value in (("positives", 1), ("negatives", -1)):
        names = entry.get(key, [])
        if not isinstance(names, list):
            raise table.error(line, f"{key} is {short(names)}; give a list of class names")
        for name in names:
            yield _name(table, name, key, line), value


def _name(table: Table, name: Any, key: str, line: int) -> str:
    if not isinstance(name, str) or not name:
        raise table.error(line, f"{key} holds {short(name)}; give class names, texts that are not empty")
    return name


def _entries(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the lines that are not blank, with their line numbers."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=no_constant)
    line = 0
    try:
        if not Path(path).is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: is not there, or not a plain file; check the path")
        with open(path, "rb") as file:
            while written := file.readline(MAX_LINE + 1):
                line += 1
                if len(written) > MAX_LINE:
                    raise ValueError(f"over the limit of {MAX_LINE:,} bytes")
                text = written.decode("utf-8-sig" if line == 1 else "utf-8").strip()
                if text:
                    entry = decoder.decode(text)
                    if not isinstance(entry, dict):
                        raise ValueError(f"{short(entry)} is not an object")
                    if "\\u" in text and _HALF.search(json.dumps(entry, ensure_ascii=False)):
                        raise ValueError("a text in it holds half a character, such as \\ud800")
                    yield line, entry
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; check the path") from None
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of a million digits, a million [
        words = " ".join(str(error).split())[:200]
        hint = 'write one object like {"image": "a.jpg", "labels": {"dog": 1}} in it'
        raise DataError(f"{path}, line {line}: {words}; {hint}") from None
