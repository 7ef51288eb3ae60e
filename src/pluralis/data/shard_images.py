"""Images inside of tar files to square uint8 tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from pluralis.data.images import ImageFiles, decode, open_rgb
from pluralis.data.safe_io import image_size
from pluralis.data.shards import ShardFiles, Shards, is_shards


def pictures(images: str | Path, paths: Sequence[Path]) -> ImageFiles | ShardImages:
    """The images at `paths`, as a reader gave them: files, or members of the shards `images`."""
    if not is_shards(images):
        return ImageFiles(paths)
    found = Shards(images).at(paths)
    return ShardImages(found.shards, found.names, found.places)


class ShardImages(ShardFiles):
    """Images in tar files, one for each row; what the loader asks for pixels."""

    def decode(self, row: int, size: int) -> Tensor:
        """The image of one row, uint8 [3, size, size]."""
        return decode(self.name(row), size, self.content(row))

    def picture(self, row: int, at_least: int) -> Image.Image:
        """The image of one row in its own proportions, for people to look at; perhaps reduced, to no less than this."""
        return open_rgb(self.name(row), at_least, self.content(row))

    def sides(self, row: int) -> tuple[int, int]:
        """Width and height of one row's image, from its header."""
        return image_size(self.name(row), self.content(row))

    def select(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> ShardImages:
        """The images of `rows`, in that order."""
        return ShardImages(self.shards, [self.names[row] for row in rows], self.places[np.asarray(rows, np.int64)])

    def signature(self) -> bytes:
        """The sizes of the images: they change with almost every edit, and cost no decoding."""
        return repr(self.places[:, 2].tolist()).encode()
