"""A folder for each class: `<root>/<class>/<image>`, the layout of image classification."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import from_lists
from pluralis.data.formats.table import check_classes
from pluralis.data.image_paths import ImagePaths
from pluralis.data.safe_io import resolve_inside
from pluralis.errors import DataError, nearest

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Pictures that nothing here decodes: to pass over them would lose data without a word.
_OTHERS = (".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".psd", ".svg", ".dng")


def read(path: str | Path, classes: Sequence[str] | None = None, unlisted: str = "unknown") -> Dataset:
    """Read the images below the folder `path`; the id of an image is its path there, such as `dog/1.jpg`.

    An image has one positive: the class named by the first folder of its path, however deep it lies in it. `unlisted`
    is what holds for all other classes: "unknown", since a picture that was put under one class may show others, or
    "absent". Classes are the folders, sorted, unless `classes` fixes them and their order.

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
    found: dict[str, str] = {}  # path below the root -> the real one
    folders: list[str] = []
    for entry in _listed(root):
        if _is_folder(entry):
            before = len(found)
            found.update((name, _file(base, name, linked)) for name, linked in _walk(root, entry.name))
            if len(found) == before:
                raise DataError(f"{entry.path}: there is no image in this class folder; add one, or remove the folder")
            folders.append(entry.name)
        elif _is_image(entry):
            raise DataError(f"{entry.path}: the image lies in no class folder; move it into one")
    if not found:
        raise DataError(f"{root}: there is no class folder with images in it; make one for each class")
    names = sorted(folders) if classes is None else list(classes)
    column = {name: number for number, name in enumerate(names)}
    for name in folders:
        if name not in column:
            raise DataError(f"{root / name}: there is no class {name!r}; {nearest(name, names)}")
    ids = sorted(found)
    labels = from_lists([(column[name.partition("/")[0]],) for name in ids], unlisted, names, ids)
    return Dataset(ImagePaths(base, map(found.__getitem__, ids)), labels)


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
    ending = os.path.splitext(entry.name)[1].lower()
    if ending in _OTHERS:
        raise DataError(f"{entry.path}: pictures of the kind {ending} are not decoded; convert it to PNG or JPEG")
    return ending in _IMAGES and (entry.is_symlink() or entry.is_file())


def _file(base: str, name: str, linked: bool) -> str:
    """The path below `base` of the file itself."""
    if not linked:
        return name
    file = resolve_inside(base, name)
    if not file.is_file():
        raise DataError(f"{base}/{name}: the link leads to no file; put the image there instead")
    return file.relative_to(base).as_posix()
