"""Opening files that strangers made: paths that stay inside a folder, images that cannot flood the memory."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from PIL import ExifTags, Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from pluralis.data.jpeg_scans import has_more_scans
from pluralis.data.tiff_tiles import tile_pixels
from pluralis.errors import DataError
from pluralis.errors import shown as shown  # its readers look for it here

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 178_956_970  # from here on Pillow refuses too, whatever is asked for
MAX_SCANS = 100  # of a JPEG: programs write about ten
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LONGEST_PART, _LONGEST_NAME = 255, 4096  # bytes that the usual file systems allow
# Letters, digits, and dots that do not begin a part: a name that `bad_name` allows, told without taking it apart.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_. -]*(/[A-Za-z0-9_-][A-Za-z0-9_. -]*)*")


def resolve_inside(root: str | Path, name: str) -> Path:
    """The real path of the entry `name` below the folder `root`; anything that leads outside is an error.

    Refused: an empty name, NUL, names that no file system takes, absolute names (also in the Windows
    spelling), any `..`, and links that end outside `root`. The file itself need not exist.
    """
    return Inside(root).find(name)


def own_file(root: str | Path, path: Path) -> Path:
    """`path`, found below the folder `root`; DataError where a link takes it outside, unopened."""
    resolve_inside(root, path.relative_to(root).as_posix())
    return path


class Inside:
    """`resolve_inside` for many names below one folder, whose own path is resolved once.

    A plain name without a link on its way lies where it says: one `lstat` for each of its parts tells so.

    >>> str(Inside("/").find("no/such.jpg"))
    '/no/such.jpg'
    """

    def __init__(self, root: str | Path) -> None:
        self.root = root
        self._base = os.path.join(os.path.realpath(root), "")  # ends with exactly one separator

    def find(self, name: str) -> Path:
        if len(name) <= _LONGEST_PART and _PLAIN.fullmatch(name) and not self._has_link(name):
            return Path(self._base + name)
        reason = bad_name(name)
        if reason:
            raise DataError(f"entry {shown(name)} is refused: {reason}; give a path relative to {self.root}")
        real = os.path.realpath(self._base + name)
        if not real.startswith(self._base):
            raise DataError(f"entry {shown(name)} is refused: it leads outside {self.root}; put the file inside")
        return Path(real)

    def _has_link(self, name: str) -> bool:
        """Whether a part of the way is a link, or cannot be looked at."""
        end = 0
        while end != -1:
            end = name.find("/", end + 1)
            try:
                mode = os.lstat(self._base + (name if end == -1 else name[:end])).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return False  # nor is there anything behind it
            except OSError:
                return True
            if stat.S_ISLNK(mode):
                return True
        return False


def open_image(
    path: str | Path, max_pixels: int = MAX_PIXELS, at_least: int | None = None, content: bytes | None = None
) -> Image.Image:
    """Decode the first frame of an image file, upright as its EXIF orientation says.

    With `content` those bytes are the file, and `path` is no more than what to call it.

    An image of more than `max_pixels`, or made of tiles of more, is refused by its header, before memory is taken
    for pixels; so is a JPEG of more than MAX_SCANS scans, each of which takes as long as a picture.
    With `at_least`, a JPEG may be decoded at 1/2, 1/4 or 1/8 scale as long as neither side falls
    below `at_least`. Whatever is wrong with the file becomes a DataError that names it.
    """
    with _opened(path, max_pixels, content) as image:
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        return _upright(image)


def image_size(path: str | Path, content: bytes | None = None) -> tuple[int, int]:
    """Width and height of an image file, as its header says; no pixels are decoded."""
    with _opened(path, MAX_PIXELS, content) as image:
        return image.size


@contextmanager
def _opened(path: str | Path, max_pixels: int, content: bytes | None) -> Iterator[Image.Image]:
    """An image whose header is read; whatever goes wrong inside the block becomes a DataError."""
    source: str | Path | BinaryIO = path if content is None else io.BytesIO(content)
    if content is None and not os.path.isfile(path):  # keeps away from pipes and devices, where opening may hang
        raise DataError(f"image {shown(str(path))} is not there, or not a plain file; check the path")
    try:
        with Image.open(source, formats=FORMATS) as image:
            reason = _too_much(image, max_pixels)
            if reason:
                raise DataError(f"image {shown(str(path))} is refused: {reason}")
            yield image
    except DataError:
        raise
    # Pillow promises no list of exceptions: hostile files make its readers raise nearly every kind.
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(
            f"image {shown(str(path))} does not decode: {type(error).__name__}: {words}; replace it or leave it out"
            " (`pluralis data check` lists all that do not open, for --leave-out)"
        ) from None


def _too_much(image: Image.Image, max_pixels: int) -> str | None:
    """Why the image would take too much memory or time, by its header, or None."""
    width, height = image.size
    if width * height > max_pixels:
        return f"{width} × {height} pixels are over the limit of {max_pixels:,}; shrink it or raise max_pixels"
    file = getattr(image, "fp", None)
    if isinstance(image, TiffImageFile) and file and tile_pixels(file) > max_pixels:
        return f"its tiles are over the limit of {max_pixels:,} pixels; save it again, or raise max_pixels"
    if isinstance(image, JpegImageFile) and file and has_more_scans(file, MAX_SCANS):
        return f"it paints the picture more than {MAX_SCANS} times; save it again"
    return None


def _upright(image: Image.Image) -> Image.Image:
    """Turn the image as its EXIF orientation says; an unreadable EXIF block turns nothing."""
    # Not ImageOps.exif_transpose: it writes the EXIF block anew, and fails where any entry of it is odd.
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the pixels are whole: do not lose an image for its broken metadata
        turn = None
    return image if turn is None else image.transpose(turn)


def bad_name(name: str) -> str | None:
    """Why `name` cannot be an entry of a folder, or None."""
    if "\0" in name:
        return "it holds a NUL"
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "it cannot be a file name"
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.root or windows.root:
        return "it is absolute"
    if ".." in windows.parts:  # which are parted at both kinds of slash
        return "it steps out with '..'"
    if len(encoded) > _LONGEST_NAME or any(len(part) > _LONGEST_PART for part in encoded.split(b"/")):
        return "it is too long"
    return None if posix.parts else "it names no file"
