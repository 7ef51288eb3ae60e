"""Augmentation on whole batches of tensors, on whatever device they are.

What is drawn for a row comes from a table with one line a row, made anew for each
(seed, stage, epoch, view): so it does not depend on workers, caches or the order of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.data.randaugment import Strong, mean_level
from pluralis.data.reused import Empty
from pluralis.errors import RecipeError

COLUMNS = 8  # uniform numbers drawn for a row: area, aspect, x, y, flip, brightness, contrast, saturation
_GREY = (0.299, 0.587, 0.114)
_TOGETHER = 2**19  # numbers that a CPU changes at a time: with what lies between, they stay in its cache


class Change(Protocol):
    """What makes a view of each picture out of `columns` uniform numbers."""

    @property
    def columns(self) -> int: ...

    def __call__(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        """images [B, 3, H, W] and draws [B, columns] in [0, 1) -> [B, 3, size, size] on the 0-255 scale."""


@dataclass(frozen=True)
class Augment:
    """Random crop, flip and colour. The output is square, on the 0-255 scale."""

    columns: ClassVar[int] = COLUMNS
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
            if self.jitter:
                images = images.to(torch.float32, copy=True)
        return self._colour(images, draws) if self.jitter else images

    def _crop(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        area = self.area + (1 - self.area) * draws[:, 0]
        stretch = torch.exp((2 * draws[:, 1] - 1) * math.log(self.aspect))
        width = (area * stretch).sqrt().clamp(max=1)
        height = (area / stretch).sqrt().clamp(max=1)
        mirror = torch.where(draws[:, 4] < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(width)
        return _part(images, width, height, draws[:, 2], draws[:, 3], mirror, size)

    def _colour(self, images: Tensor, draws: Tensor) -> Tensor:
        """Brightness, contrast and saturation together, in place: a·x + b·grey(x) + c with three numbers a picture."""
        bright, contrast, saturation = (1 + self.jitter * (2 * draws[:, 5:8] - 1)).T[..., None, None]
        red, green, blue = images.unbind(1)
        grey = (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2])
        level = mean_level(grey)
        shift = grey.mul_(bright * contrast * (1 - saturation)).add_(bright * (1 - contrast) * level)
        scale = (bright * contrast * saturation)[:, None]
        return torch.addcmul(shift[:, None], images, scale, out=images).clamp_(0, 255)


@dataclass(frozen=True)
class MultiScale:
    """A square part with 1, 0.875, 0.75, 0.625 or 0.5 of the side, anywhere in the picture, brought to size; and flip.

    The published augmentation of PU-MLC (Yuan et al., 2024), which stores pictures of 512 pixels and trains on 448.
    """

    columns: ClassVar[int] = 4  # side, x, y, flip
    sides: ClassVar[tuple[float, ...]] = (1.0, 0.875, 0.75, 0.625, 0.5)

    def __call__(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        sides = torch.tensor(self.sides, device=draws.device)
        side = sides[(draws[:, 0] * len(sides)).long()]
        mirror = torch.where(draws[:, 3] < 0.5, -1.0, 1.0)
        return _part(images.float(), side, side, draws[:, 1], draws[:, 2], mirror, size)


@dataclass(frozen=True)
class Window:
    """A window of `size` pixels anywhere in a larger stored picture, unscaled; and flip."""

    columns: ClassVar[int] = 3  # x, y, flip

    def __call__(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        height, width = images.shape[-2:]
        if min(height, width) < size:
            raise RecipeError(
                f"the augmentation 'window' cuts {size} pixels out of stored pictures of {width}×{height}:"
                " set data.store_size to more than data.size"
            )
        steps = torch.arange(size, device=images.device)
        columns = (draws[:, :1] * (width - size + 1)).long() + torch.where(draws[:, 2:] < 0.5, size - 1 - steps, steps)
        rows = (draws[:, 1:2] * (height - size + 1)).long() + steps
        which = torch.arange(len(images), device=images.device)[:, None, None]
        # With indices on both sides of it, the slice of colours comes last.
        return images[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True)
class InTurn:
    """One change, and then another of what it made."""

    first: Change
    then: Change

    @property
    def columns(self) -> int:
        return self.first.columns + self.then.columns

    def __call__(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        own = self.first.columns
        return self.then(self.first(images, draws[:, :own], size), draws[:, own:], size)


def _part(images: Tensor, width: Tensor, height: Tensor, x: Tensor, y: Tensor, mirror: Tensor, size: int) -> Tensor:
    """The part of each picture with that share of its sides, x and y of the way through what is left, at `size`."""
    # By sums: `F.affine_grid` multiplies matrices, which takes a CPU longer than the sampling itself.
    places = (2 * torch.arange(size, device=images.device) + 1) / size - 1
    across = (width * mirror)[:, None] * places + ((2 * x - 1) * (1 - width))[:, None]
    down = height[:, None] * places + ((2 * y - 1) * (1 - height))[:, None]
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), 1)  # [B, 2, size, size]
    return F.grid_sample(images, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False)


AUGMENTS: dict[str, Change] = {
    "none": Augment(),
    "flip": Augment(flip=True),
    "crop": Augment(flip=True, area=0.4, jitter=0.2),
    "multi-scale": MultiScale(),
    "window": Window(),
    "strong": Strong(),
    "strong-crop": InTurn(Augment(area=0.4), Strong()),
    "strong-released": Strong(released=True),
}


def get_augment(name: str) -> Change:
    if name not in AUGMENTS:
        raise RecipeError(f"there is no augmentation {name!r}; it must be one of {', '.join(AUGMENTS)}")
    return AUGMENTS[name]


def make_view(change: Change, images: Tensor, draws: Tensor, size: int, empty: Empty = torch.empty) -> Tensor:
    """change(images, draws, size); on a CPU by a few pictures at a time, which takes half as long as all at once.

    Those few are put together in memory that `empty` gives.
    """
    few = max(1, _TOGETHER // (3 * size * size))
    if images.device.type != "cpu" or len(images) <= few:
        return change(images, draws, size)
    first = change(images[:few], draws[:few], size)
    whole = empty((len(images), *first.shape[1:]), dtype=first.dtype)
    whole[:few] = first
    for start in range(few, len(images), few):
        part = slice(start, start + few)
        whole[part] = change(images[part], draws[part], size)  # moved while it is in the processor's cache
    return whole


def resize(images: Tensor, size: int) -> Tensor:
    """[B, 3, H, W] -> [B, 3, size, size]; untouched where the size is right already."""
    if images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
