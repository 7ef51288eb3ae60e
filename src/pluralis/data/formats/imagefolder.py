"""A folder for each class: `<root>/<class>/<image>`, the layout of image classification."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import from_lists
from pluralis.data.formats.table import check_classes
from pluralis.data.image_endings import is_image
from pluralis.data.image_paths import ImagePaths
from pluralis.data.safe_io import Inside
from pluralis.errors import DataError, nearest


def read(path: str | Path, classes: Sequence[str] | None = None, unlisted: str = "unknown") -> Dataset:
    """Read the images below the folder `path`; the id of an image is its path there, such as `dog/1.jpg`.

    An image has one positive: the class named by the first folder of its path, however deep it lies in it. `unlisted`
    is what holds for all other classes: "unknown", since a picture that was put under one class may show others, or
    "absent". Classes are the folders, sorted, unless `classes` fixes them and their order.

    A link to an image is that image once more: `cat/1.jpg`, a link to `dog/1.jpg`, gives `dog/1.jpg` both classes. The
    id of an image is then its own path where it lies in a class folder, else the first link to it.

    Files and folders whose name begins with a dot are passed over, and so are files that are no images by their ending.
    Errors are: an image outside of any class folder, a class folder without an image, a link to a folder, a link that
    leads outside `path`, and pictures of a kind that is not decoded.
    """
    if unlisted not in ("unknown", "absent"):
        raise DataError(f"unlisted={unlisted!r} is not possible; choose 'unknown' or 'absent'")
    if classes is not None:
        check_classes(classes)
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}; give the one that holds a folder for each class")
    base = os.path.realpath(root)
    found: set[str] = set()  # paths below the root
    links: list[str] = []
    folders: list[str] = []
    for entry in _listed(root):
        if _is_folder(entry):
            before = len(found) + len(links)
            for name, is_link in _walk(root, entry.name):
                (links.append if is_link else found.add)(name)
            if len(found) + len(links) == before:
                raise DataError(f"{entry.path}: there is no image in this class folder; add one, or remove the folder")
            folders.append(entry.name)
        elif _is_image(entry):
            raise DataError(f"{entry.path}: the image lies in no class folder; move it into one")
    if not folders:
        raise DataError(f"{root}: there is no class folder with images in it; make one for each class")
    names = sorted(folders) if classes is None else list(classes)
    column = {name: number for number, name in enumerate(names)}
    for name in folders:
        if name not in column:
            raise DataError(f"{root / name}: there is no class {name!r}; {nearest(name, names)}")
    linked = _targets(base, links)
    files = {name: name for name in found} | {file if file in found else to[0]: file for file, to in linked.items()}
    ids = sorted(files)
    given = [_columns(column, row, *linked.get(files[row], ())) for row in ids]
    images = ImagePaths(base, map(files.__getitem__, ids))
    dead = (path for path in (os.path.join(base, file) for file in linked) if not os.path.isfile(path))
    return Dataset(images.lacking(dead, root), from_lists(given, unlisted, names, ids))


def _columns(column: dict[str, int], *names: str) -> tuple[int, ...]:
    """The numbers of the classes under which an image is found."""
    return tuple({column[name.partition("/")[0]] for name in names})


def _targets(base: str, links: list[str]) -> dict[str, list[str]]:
    """The path below `base` of every image that is linked to, and the links, sorted; a dead link is its own image."""
    inside, found = Inside(base), dict[str, list[str]]()
    for name in sorted(links):
        target = inside.find(name)
        found.setdefault(os.path.relpath(target, base) if os.path.isfile(target) else name, []).append(name)
    return found


def _walk(root: Path, name: str) -> Iterator[tuple[str, bool]]:
    """The images in the folder `name` of `root` and below it, as (path there, whether it is a link)."""
    waiting = [name]  # no recursion: folders may be nested deeper than Python's stack
    while waiting:
        folder = waiting.pop()
        for entry in _listed(root / folder):
            if _is_folder(entry):
                waiting.append(f"{folder}/{entry.name}")
            elif _is_image(entry):
                yield f"{folder}/{entry.name}", entry.is_symlink()


def _listed(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder and not hidden."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    entry.name.encode()
                    yield entry
    except UnicodeEncodeError:
        raise DataError(f"{str(folder)!r}: it holds the name {entry.name!r}, which is not UTF-8; rename it") from None
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; check the folder") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink() and os.path.isdir(entry.path):
        raise DataError(f"{entry.path}: a link to a folder may lead anywhere; put the images themselves there")
    return entry.is_dir(follow_symlinks=False)


def _is_image(entry: os.DirEntry[str]) -> bool:
    return is_image(entry.path) and (entry.is_symlink() or entry.is_file())
