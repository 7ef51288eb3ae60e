"""Augmentation on whole batches of tensors, on whatever device they are.

What is drawn for a row comes from a table with one line a row, made anew for each
(seed, stage, epoch, view): so it does not depend on workers, caches or the order of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.errors import RecipeError

COLUMNS = 8  # uniform numbers drawn for a row: area, aspect, x, y, flip, brightness, contrast, saturation
_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augment:
    """Random crop, flip and colour. The output is square, on the 0-255 scale."""

    flip: bool = False
    area: float = 1.0  # smallest part of the picture that a crop keeps; 1 = no crop
    aspect: float = 4 / 3  # most that a crop is stretched
    jitter: float = 0.0  # most that brightness, contrast and saturation change

    def __call__(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        """images [B, 3, H, W] uint8 and draws [B, COLUMNS] in [0, 1) -> [B, 3, size, size]."""
        if self.area < 1:
            images = self._crop(images.float(), draws, size)
        else:
            images = resize(images, size)
            if self.flip:
                images = torch.where((draws[:, 4] < 0.5)[:, None, None, None], images.flip(-1), images)
        return self._colour(images.float(), draws) if self.jitter else images

    def _crop(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        area = self.area + (1 - self.area) * draws[:, 0]
        stretch = torch.exp((2 * draws[:, 1] - 1) * math.log(self.aspect))
        width = (area * stretch).sqrt().clamp(max=1)
        height = (area / stretch).sqrt().clamp(max=1)
        mirror = torch.where(draws[:, 4] < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(width)
        theta = torch.zeros(len(images), 2, 3, device=images.device)
        theta[:, 0, 0] = width * mirror
        theta[:, 0, 2] = (2 * draws[:, 2] - 1) * (1 - width)
        theta[:, 1, 1] = height
        theta[:, 1, 2] = (2 * draws[:, 3] - 1) * (1 - height)
        grid = F.affine_grid(theta, [len(images), 3, size, size], align_corners=False)
        return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)

    def _colour(self, images: Tensor, draws: Tensor) -> Tensor:
        """Brightness, contrast and saturation together: a·x + b·grey(x) + c with three numbers a picture."""
        bright, contrast, saturation = (1 + self.jitter * (2 * draws[:, 5:8] - 1)).T[..., None, None]
        red, green, blue = images.unbind(1)
        grey = red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]
        level = grey.mean((1, 2), keepdim=True)
        shift = grey.mul_(bright * contrast * (1 - saturation)).add_(bright * (1 - contrast) * level)
        return images.mul((bright * contrast * saturation)[:, None]).add_(shift[:, None]).clamp_(0, 255)


AUGMENTS: dict[str, Augment] = {
    "none": Augment(),
    "flip": Augment(flip=True),
    "crop": Augment(flip=True, area=0.4, jitter=0.2),
}


def get_augment(name: str) -> Augment:
    if name not in AUGMENTS:
        raise RecipeError(f"there is no augmentation {name!r}; it must be one of {', '.join(AUGMENTS)}")
    return AUGMENTS[name]


def resize(images: Tensor, size: int) -> Tensor:
    """[B, 3, H, W] -> [B, 3, size, size]; untouched where the size is right already."""
    if images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
