"""Image files to square uint8 tensors, whatever kind of pixels they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from pluralis.data.image_paths import ImagePaths
from pluralis.data.pillow_pixels import quads
from pluralis.data.safe_io import image_size, open_image
from pluralis.errors import DataError, shown

DECODING = 1  # to be raised with any change in what `decode` gives
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")


def decode(path: str | Path, size: int, content: bytes | None = None) -> Tensor:
    """Read an image as RGB, uint8 [3, size, size], squashed to a square with antialiasing.

    With `content` those bytes are the file, and `path` is no more than what to call it.

    Transparent pixels are laid on white; 16-bit grey is scaled to 8 bits; of an animation the first
    frame counts. A JPEG at least four times as large as needed is decoded at a reduced scale of no
    less than twice `size`, so that the antialiasing still has the last word.
    """
    if size < 1:
        raise DataError(f"the image size {size} is not possible; give at least 1")
    # Pillow and the resampling keep four bytes a pixel: with three, both would have to move them.
    pixels = quads(open_rgb(path, 2 * size, content))[None].permute(0, 3, 1, 2)
    if pixels.shape[2:] != (size, size):
        # Bytes are resampled as they are: ten times as fast as floats and never more than one level off.
        pixels = F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True)
    return pixels[0, :3].contiguous()


def open_rgb(path: str | Path, at_least: int, content: bytes | None = None) -> Image.Image:
    """An image as RGB, upright and in its own proportions; `at_least` and `content` as for `open_image`."""
    image = open_image(path, at_least=at_least, content=content)
    try:
        return to_rgb(image)
    except (ValueError, OSError, MemoryError) as error:
        raise DataError(f"image {shown(str(path))}: its pixels ({image.mode}) do not become RGB: {error}") from None


def decoding() -> str:
    """How pictures become pixels: our way of it, and the libraries that do it."""
    return f"{DECODING} {PIL.__version__} {torch.__version__.split('+')[0]}"


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow image as mode RGB; ValueError where its numbers have no agreed meaning as colours.

    One that is RGB already is handed over as it is, and `quads` then shows its own memory.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        return _grey16(image).convert("RGB")
    if image.mode == "F":
        raise ValueError("fractions have no agreed range; save it with 8 or 16 bits")
    if image.mode in _ALPHA or "transparency" in image.info:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", rgba.size, "white")
        white.paste(rgba, mask=rgba)  # as alpha_composite, which would take three more pictures
        return white
    return image.convert("RGB")


def _grey16(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits: Pillow's own conversion cuts everything above 255 instead of scaling."""
    wide = np.asarray(image)
    if wide.min() < 0 or wide.max() > 65535:
        raise ValueError(f"grey values from {wide.min()} to {wide.max()}; save it with 8 or 16 bits")
    # (wide + 128) // 257 within 16 bits: all from 65407 on become 255.
    grey = np.minimum(wide, 65407, out=np.empty(wide.shape, np.uint16), casting="unsafe")
    del wide
    grey += 128
    grey //= 257
    return Image.fromarray(grey.astype(np.uint8))


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk, one for each row; what the loader asks for pixels."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def decode(self, row: int, size: int) -> Tensor:
        """The image of one row, uint8 [3, size, size]."""
        return decode(self.paths[row], size)

    def picture(self, row: int, at_least: int) -> Image.Image:
        """The image of one row in its own proportions, for people to look at; perhaps reduced, to no less than this."""
        return open_rgb(self.paths[row], at_least)

    def sides(self, row: int) -> tuple[int, int]:
        """Width and height of one row's image, from its header."""
        return image_size(self.paths[row])

    def name(self, row: int) -> str:
        """The path of one row's image, for messages and lists."""
        return str(self.paths[row])

    def select(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> ImageFiles:
        """The images of `rows`, in that order."""
        return ImageFiles(ImagePaths.of(self.paths).take(rows))

    def signature(self) -> bytes:
        """The sizes of the files: they change with almost every edit, and cost no decoding."""
        return repr([os.stat(path).st_size for path in ImagePaths.of(self.paths).texts()]).encode()

    def origins(self) -> Iterator[str]:
        """What each row is decoded from: it changes with the file's place, and with whatever its folder says of it."""
        for path in ImagePaths.of(self.paths).texts():
            try:
                facts = os.stat(path)
            except OSError as error:
                raise DataError(f"image {shown(path)} cannot be read: {error.strerror}; check the path") from None
            # The time of the inode too: it tells of a file that was painted over, with its old size and time put back.
            yield f"{os.path.abspath(path)}\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ctime_ns}\0{facts.st_ino}"

    def digest(self, row: int) -> bytes:
        """A hash of the bytes of one row's file."""
        path = self.paths[row]
        try:
            if not path.is_file():  # also keeps away from pipes and devices, on which reading may hang
                raise DataError(f"image {shown(str(path))} is not there, or not a plain file; check the path")
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise DataError(f"image {shown(str(path))} cannot be read: {error.strerror}; check the path") from None
