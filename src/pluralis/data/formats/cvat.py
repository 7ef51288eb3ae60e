"""CVAT for images 1.1: one XML file with the labels of a task and the tags, and perhaps shapes, of each image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import check_images, check_unlisted, file_names, from_lists, locate, to_lists
from pluralis.data.safe_io import own_file
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

MAX_BYTES = 4 << 30
MAX_DEPTH = 32  # CVAT's own files have eight levels
_LABEL = ["labels", "label"]
_SHAPES = {"box", "polygon", "polyline", "points", "ellipse", "cuboid", "mask", "skeleton"}
_BREAKS = {"\r": "&#13;"}  # a bare one would be read as a line feed
# Everything else cannot be written down in XML 1.0, not even escaped.
_WRITABLE = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


def read(
    path: str | Path,
    images: str | Path | None = None,
    unlisted: str | None = None,
    shapes: str = "present",
) -> Dataset:
    """Read the tags of each image; the id of an image is its name in the file.

    `path` is `annotations.xml` or the folder that holds it; the names start from the folder `images`, if it is not
    the `images` beside the file. The classes are the labels of the task, in its order, or those that occur, sorted,
    where the file does not list them. A box or another shape makes its label present too, unless `shapes` is
    "ignore". It does not matter whether a person or a model put a tag there: CVAT keeps no confidence.

    `unlisted` must be stated: "absent" where every label was looked for in every image, else "unknown".
    """
    unlisted = check_unlisted(unlisted)
    if shapes not in ("present", "ignore"):
        raise DataError(f"shapes={shapes!r} is not possible; choose 'present' or 'ignore'")
    root = Path(path)
    file = own_file(root, root / "annotations.xml") if root.is_dir() else root
    beside = file.parent / "images"
    folder = check_images(beside if images is None and beside.is_dir() else images, file)
    number: dict[str, int] = {}  # of each class
    tagged: dict[str, set[str]] = {}
    for element in _elements(file):
        if element.tag == "label":
            if element.find("parent") is not None:  # a joint of a skeleton
                continue
            name = element.findtext("name") or ""
            if not name or name in number:
                raise DataError(f"{file}: the label {name[:80]!r} has no name or is listed twice; mend the list")
            number[name] = len(number)
            continue
        name = element.get("name") or ""
        where = f"{file}, image {(element.get('id') or str(len(tagged)))[:20]} ({name[:80]!r})"
        if not name or name in tagged:
            raise DataError(f"{where}: it has no name or is listed twice; give every image one entry")
        found = [child for child in element if child.tag == "tag" or (shapes == "present" and child.tag in _SHAPES)]
        tagged[name] = {child.get("label") or "" for child in found}
        if "" in tagged[name]:
            raise DataError(f"{where}: one of its tags has no label; give it one, or take it out")
        other = [tag for tag in tagged[name] if tag not in number] if number else []
        if other:
            first = min(other)[:80]
            raise DataError(f"{where}: the task has no label {first!r}; {nearest(first, (c[:80] for c in number))}")
    number = number or {name: place for place, name in enumerate(sorted(set().union(*tagged.values())))}
    ids = sorted(tagged)
    _, paths = locate(folder, ids, file)
    return Dataset(paths, from_lists([{number[t] for t in tagged[i]} for i in ids], unlisted, list(number), ids))


def write(
    path: str | Path, data: Dataset | Labels, unlisted: str | None = None, images: str | Path | None = None
) -> None:
    """Write every present label as a tag, to be uploaded to a task with the same labels and images.

    `unlisted` must be stated, as for reading: the format cannot say absent beside unknown. The names of the images
    start from the folder `images`.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    listed, names = to_lists(labels, unlisted), file_names(data, images)
    for name in (*labels.classes, *names):
        if not _WRITABLE.fullmatch(name):
            raise DataError(f"the name {name[:80]!r} cannot be written to XML; rename the class or the image")
    with whole_text(path) as file:
        file.write('<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n')
        file.write("  <meta>\n    <task>\n      <labels>\n")
        for name in labels.classes:
            file.write(f"        <label><name>{escape(name, _BREAKS)}</name><type>tag</type></label>\n")
        file.write("      </labels>\n    </task>\n  </meta>\n")
        for number, (name, present) in enumerate(zip(names, listed, strict=True)):
            file.write(f'  <image id="{number}" name={quoteattr(name)}>\n')
            for column in present or ():
                file.write(f'    <tag label={quoteattr(labels.classes[column])} source="manual"></tag>\n')
            file.write("  </image>\n")
        file.write("</annotations>\n")


def _elements(file: Path) -> Iterator[Any]:
    """The elements `label` of the task's list and `image`, each forgotten after its turn."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, iterparse

    path: list[str] = []
    root: Any = None
    try:
        if not file.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{file}: is not there, or not a plain file; give annotations.xml of an export")
        if file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file}: over the limit of {MAX_BYTES:,} bytes; export the task in parts")
        with file.open("rb") as stream:
            for event, element in iterparse(stream, ("start", "end"), forbid_dtd=True):
                if event == "start":
                    path.append(element.tag)
                    root = element if len(path) == 1 else root
                    if len(path) > MAX_DEPTH:
                        raise DataError(f"{file}: nested deeper than {MAX_DEPTH} levels; it is no export of CVAT")
                    if len(path) == 1 and element.tag != "annotations":
                        raise DataError(f"{file}: begins with {element.tag[:80]!r}; export as CVAT for images 1.1")
                    if path == ["annotations", "track"]:
                        raise DataError(f"{file}: holds tracks of a video; export as CVAT for images 1.1")
                    continue
                if path == ["annotations", "image"] or (path[:2] == ["annotations", "meta"] and path[3:] == _LABEL):
                    yield element
                path.pop()
                if len(path) == 1:
                    root.clear()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}; check the path") from None
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(f"{file}: is not plain XML: {words}; export it again") from None
