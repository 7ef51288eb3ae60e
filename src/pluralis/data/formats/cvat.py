"""CVAT for images 1.1: one XML file with the labels of a task and the tags, and perhaps shapes, of each image."""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import check_images, check_unlisted, file_names, from_lists, locate, to_lists
from pluralis.data.safe_io import own_file
from pluralis.data.safe_xml import parse
from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

MAX_BYTES = 4 << 30
MAX_NAME = 4096  # characters of a label
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
    export = _Export(file, shapes)
    parse(file, export, MAX_BYTES, "export the task again, or in parts")
    classes = list(export.classes) or sorted(export.labels)
    number = {name: place for place, name in enumerate(classes)}
    for label, code in export.labels.items():
        if label not in number:
            image = next(name for name, codes in export.tagged.items() if code in codes)
            known = nearest(label[:80], (name[:80] for name in classes))
            raise DataError(f"{file}, image {image[:80]!r}: the task has no label {label[:80]!r}; {known}")
    column = [number[label] for label in export.labels]
    ids = sorted(export.tagged)
    _, paths = locate(folder, ids, file)
    present = [{column[code] for code in export.tagged[name]} for name in ids]
    return Dataset(paths, from_lists(present, unlisted, classes, ids))


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


class _Export:
    """What one file says, gathered while it is parsed: nothing else of it is kept."""

    def __init__(self, file: Path, shapes: str) -> None:
        self.file = file
        self.classes: dict[str, int] = {}  # of the task, in its order, with their numbers
        self.labels: dict[str, int] = {}  # of tags and shapes, in the order of the file, with their numbers
        self.tagged: dict[str, set[int]] = {}  # numbers of the labels of each image
        self._counted = {"tag", *_SHAPES} if shapes == "present" else {"tag"}
        self._path: list[str] = []
        self._where, self._image = "", set[int]()
        self._names: list[str] = []  # of the label that is being read
        self._joint = False  # whether it is one of a skeleton

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        depth = len(self._path)
        if depth == 1 and tag != "annotations":
            raise DataError(f"{self.file}: begins with {tag[:80]!r}; export as CVAT for images 1.1")
        if depth == 2 and tag == "track":
            raise DataError(f"{self.file}: holds tracks of a video; export as CVAT for images 1.1")
        if depth == 2 and tag == "image":
            self._add_image(attributes)
        elif depth == 3 and tag in self._counted and self._path[1] == "image":
            name = attributes.get("label")
            if not name:
                raise DataError(f"{self._where}: one of its tags has no label; give it one, or take it out")
            self._image.add(self.labels.setdefault(name, len(self.labels)))
        elif self._in_label(5):
            self._names, self._joint = [], False
        elif self._in_label(6) and tag == "name":
            self._names.append("")
        elif self._in_label(6) and tag == "parent":
            self._joint = True

    def data(self, text: str) -> None:
        if self._in_label(6) and self._path[5] == "name":
            self._names[-1] += text
            if len(self._names[-1]) > MAX_NAME:
                raise DataError(f"{self.file}: the name of a label is over {MAX_NAME:,} characters; shorten it")

    def end(self, tag: str) -> None:
        if self._in_label(5) and not self._joint:
            name = self._names[0] if len(self._names) == 1 else ""
            if not name or name in self.classes:
                raise DataError(f"{self.file}: the label {name[:80]!r} has no name or is listed twice; mend the list")
            self.classes[name] = len(self.classes)
        self._path.pop()

    def close(self) -> None:
        """Nothing is left to do."""

    def _add_image(self, attributes: dict[str, str]) -> None:
        name = attributes.get("name") or ""
        self._where = f"{self.file}, image {(attributes.get('id') or str(len(self.tagged)))[:20]} ({name[:80]!r})"
        if not name or name in self.tagged:
            raise DataError(f"{self._where}: it has no name or is listed twice; give every image one entry")
        self._image = self.tagged[name] = set()

    def _in_label(self, depth: int) -> bool:
        """Whether this is so deep, in a label of the task (or of a project or job, instead)."""
        return len(self._path) == depth and self._path[1] == "meta" and self._path[3:5] == ["labels", "label"]
