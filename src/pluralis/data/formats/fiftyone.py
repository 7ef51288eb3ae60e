"""FiftyOne image classification: `data/` with the images and `labels.json` with one class or a list for each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from posixpath import split, splitext
from typing import Any

from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats.listing import check_images, check_unlisted, file_names, from_lists, locate, to_lists
from pluralis.data.image_endings import ENDINGS
from pluralis.data.image_paths import ImagePaths
from pluralis.data.safe_io import own_file
from pluralis.data.safe_json import Document, short
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, nearest, shown
from pluralis.labels import Labels


def read(path: str | Path, images: str | Path | None = None, unlisted: str | None = None) -> Dataset:
    """Read FiftyOneImageClassificationDataset: {"classes": […], "labels": {"<name without ending>": …}}.

    The label of an image is a class, as its number in `classes` or as text, or a list of them, or null where it has
    none: then all its labels are unknown. A class may also be an object with `label`; one with a `confidence` was
    predicted by a model and becomes a hint. Without `classes` they are those that occur, sorted.

    `path` is the folder that holds `data` and `labels.json`, or the JSON file, whose images lie in the folder
    `images`. The id of an image is its file name there. `unlisted` must be stated: "absent" where every class was
    looked for in every image, which is so where each image has exactly one class of several, else "unknown".
    An image that is not there has its name in the JSON file as its id.
    """
    unlisted = check_unlisted(unlisted)
    root = Path(path)
    file = own_file(root, root / "labels.json") if root.is_dir() else root
    folder = check_images(root / "data" if images is None and root.is_dir() else images, file)
    document = Document(file)
    content = document.mapping(document.content, "the file")
    given = {
        key: None
        if value is None
        else [_target(document, v, where) for where, v in _values(value, f"labels[{shown(key)}]")]
        for key, value in document.mapping(content.get("labels"), "labels").items()
    }
    classes = _classes(document, content.get("classes"), given)
    number = {name: place for place, name in enumerate(classes)}
    there = set(_files(folder))
    files = _by_stem(there)
    rows: dict[str, set[int] | None] = {}
    hints: list[tuple[str, int, float]] = []
    for key, targets in given.items():
        name = _file(document, there, files, key)
        if name in rows:
            raise document.error(f"labels[{short(key)}]: the image {short(name)} has labels already; keep one of them")
        present = None if targets is None else set[int]()
        for where, target, confidence in targets or ():
            column = _column(document, target, where, classes, number)
            if confidence is None and present is not None:
                present.add(column)
            elif confidence is not None:
                hints.append((name, column, confidence))
        predicted = targets and all(confidence is not None for _, _, confidence in targets)
        rows[name] = None if predicted else present
    ids = sorted(rows)
    paths = locate(folder, ids, file)[1]
    labels = from_lists([rows[name] for name in ids], unlisted, classes, ids)
    place = {name: row for row, name in enumerate(ids)}
    gathered = Hints.gather(*zip(*((place[n], c, s) for n, c, s in hints), strict=True)) if hints else None
    return Dataset(paths, labels, gathered)


def write(
    path: str | Path, data: Dataset | Labels, unlisted: str | None = None, images: str | Path | None = None
) -> None:
    """Write `labels.json`: the list of the present classes of each image, null for one without any label.

    `path` is the JSON file; the images stay where they are. Their names, less the ending, start from the folder
    `images`; where another image lies there that differs in its ending alone, nothing is written. `unlisted` must be
    stated, as for reading: the format cannot say absent beside unknown, except that a whole image may be unknown.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    listed = to_lists(labels, unlisted, blank=True)
    names = [splitext(name)[0] for name in file_names(data, images)]
    if len(set(names)) < len(names):
        raise DataError("two images differ in their ending alone, which the format leaves out; rename one")
    if isinstance(data, Dataset):
        _refuse_unclear(data.images)
    with whole_text(path) as file:
        file.write(f'{{"classes": {json.dumps(labels.classes, ensure_ascii=False)},\n"labels": {{')
        for row, (name, present) in enumerate(zip(names, listed, strict=True)):
            file.write(f"{',' if row else ''}\n{json.dumps(name, ensure_ascii=False)}: {json.dumps(present)}")
        file.write("}}\n")


_Target = tuple[str, Any, float | None]


def _values(value: Any, where: str) -> list[tuple[str, Any]]:
    return [(f"{where}[{n}]", v) for n, v in enumerate(value)] if isinstance(value, list) else [(where, value)]


def _target(document: Document, value: Any, where: str) -> _Target:
    """Place, class as number or text, and confidence of one target."""
    if not isinstance(value, dict):
        return where, value, None
    confidence = value.get("confidence")
    checked = None if confidence is None else document.share(confidence, f"{where}.confidence")
    return f"{where}.label", value.get("label"), checked


def _classes(document: Document, listed: Any, given: dict[str, list[_Target] | None]) -> list[str]:
    if listed is None:
        every = (target for targets in given.values() for target in targets or ())
        return sorted({document.text(target, where) for where, target, _ in every})
    names = document.listed(listed, "classes")
    classes = [document.text(name, f"classes[{place}]") for place, name in enumerate(names)]
    if len(set(classes)) < len(classes):
        raise document.error("classes: a name is there twice; keep one of them")
    return classes


def _column(document: Document, target: Any, where: str, classes: list[str], number: dict[str, int]) -> int:
    if isinstance(target, str):
        if target not in number:
            known = nearest(target[:80], (name[:80] for name in classes))
            raise document.error(f"{where}: there is no class {short(target)}; {known}")
        return number[target]
    column = document.whole(target, where)
    if not 0 <= column < len(classes):
        raise document.error(f"{where} is {column}, but classes go from 0 to {len(classes) - 1}; give one of them")
    return column


def _files(folder: Path) -> Iterator[str]:
    """All files below the folder, as they are called there."""
    for place, _, names in os.walk(folder):
        head = Path(place).relative_to(folder).as_posix()
        yield from (name if head == "." else f"{head}/{name}" for name in names)


def _by_stem(files: Iterable[str]) -> dict[str, list[str]]:
    """Name without its ending -> the images that are called so."""
    found: dict[str, list[str]] = {}
    for name in sorted(files):
        stem, ending = splitext(name)
        if ending.lower() in ENDINGS:
            found.setdefault(stem, []).append(name)
    return found


def _file(document: Document, there: set[str], images: dict[str, list[str]], key: str) -> str:
    """The image that `key` names; where there is none the key itself, so that it is told as missing."""
    found = images.get(key) or [n for n in images.get(splitext(key)[0], ()) if n == key]
    if len(found) > 1:
        some = " or ".join(map(shown, found[:3]))
        raise document.error(f"labels[{short(key)}]: its image could be {some}; keep one of them in the folder")
    if not found and key in there:
        raise document.error(f"labels[{short(key)}]: that file has no ending of images, such as .jpg; rename it")
    return found[0] if found else key


def _refuse_unclear(paths: Sequence[Path]) -> None:
    """Raise where an image could not be found again by its name without the ending."""
    folders: dict[str, list[str]] = {}
    for path in ImagePaths.of(paths).texts():
        folder, name = split(path)
        folders.setdefault(folder, []).append(name)
    for folder, names in folders.items():
        images = _by_stem({*names, *(os.listdir(folder) if os.path.isdir(folder) else ())})
        for name in names:
            same = images.get(splitext(name)[0], [])
            if name not in same:
                raise DataError(f"{folder}: {shown(name)} has no ending of images, such as .jpg; rename it")
            if len(same) > 1:
                both = " and ".join(map(shown, same[:2]))
                raise DataError(
                    f"{folder}: {both} differ in their ending alone, which the format leaves out; rename one"
                )
