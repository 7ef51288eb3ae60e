"""Which files are images, by their names: one list for class folders, shards and predictions."""

from __future__ import annotations

import os

from pluralis.errors import DataError, shown

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Pictures that nothing here decodes: to pass over them would lose data without a word.
_OTHERS = {".heic", ".heif", ".hif", ".avif", ".jp2", ".j2k", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".psd"}
_OTHERS |= {".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw"}


def is_other(name: str) -> bool:
    """Whether a file is, by its ending, a picture of a kind that is not decoded.

    >>> is_other("a.HEIC"), is_other("a.jpg")
    (True, False)
    """
    return os.path.splitext(name)[1].lower() in _OTHERS


def is_picture(name: str) -> bool:
    """Whether a file is a picture by its ending, of whatever kind; what a Mac writes beside one is not.

    >>> is_picture("a.HEIC"), is_picture("a.jpg"), is_picture("._a.jpg")
    (True, True, False)
    """
    return not name.startswith("._") and (is_other(name) or is_image(name))


def is_image(name: str) -> bool:
    """Whether a file is an image by its ending; DataError where it is a picture of a kind that is not decoded.

    >>> is_image("cat/1.JFIF"), is_image("labels.csv")
    (True, False)
    """
    ending = os.path.splitext(name)[1].lower()
    if is_other(name):
        raise DataError(
            f"{shown(name)}: pictures of the kind {ending} are not decoded; convert it to PNG or JPEG, or take it out"
        )
    return ending in ENDINGS
