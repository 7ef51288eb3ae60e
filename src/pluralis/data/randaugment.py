"""Strong augmentation for consistency training: RandAugment (Cubuk et al., 2020), then Cutout (DeVries, Taylor, 2017).

Two of the 14 operations below are drawn for each picture, with replacement, all at magnitude 9 of 30:

    identity, autocontrast, equalize              have no strength
    rotate 9°, shear x and y 0.09, translate x and y 0.136 of the side        in a drawn direction
    brightness, contrast, colour, sharpness       factor 1 ± 0.27, the sign drawn
    solarize values above 178.5, posterize to 7 bits

Whatever moves pixels (the flip too) is composed to one affine map and sampled once, before the colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

MAGNITUDE = 0.3
ANGLE = MAGNITUDE * math.radians(30)
SHEAR = MAGNITUDE * 0.3
SHIFT = MAGNITUDE * 150 / 331
ENHANCE = MAGNITUDE * 0.9
SOLARIZE = (1 - MAGNITUDE) * 255
POSTERIZE = 2.0 ** round(MAGNITUDE * 4)  # a grey level in so many stays
FILL = 127.5  # what comes into the picture from outside, and Cutout's patch
_SAMPLED = 128  # equalize counts grey levels on a grid of about so many pixels a side

GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")


@dataclass(frozen=True)
class Strong:
    """Flip, two operations of RandAugment, and a patch of half the side, centred anywhere in the picture, blanked out.

    `released` is closer to what was published with LAC (Xie et al., 2022): the patch has a random colour, then
    brightness, contrast and colour change by up to 40 % in four of five pictures, and one of five turns grey. (Its
    small change of hue, and its order, Cutout before RandAugment, are not followed.)
    """

    columns: ClassVar[int] = 15  # flip, 2 operations, 2 signs, patch x and y; patch colour, jitter, jitter?, grey?
    released: bool = False

    def __call__(self, images: Tensor, draws: Tensor, size: int) -> Tensor:
        """images [B, 3, H, W] and draws [B, 15] in [0, 1) -> float [B, 3, size, size] on the 0-255 scale."""
        kinds = (draws[:, 1:3] * len(OPERATIONS)).long()  # [B, 2]
        signs = torch.where(draws[:, 3:5] < 0.5, -1.0, 1.0)
        images = _sample(images.float(), _affine(draws[:, 0] < 0.5, kinds, signs), size)
        for slot in range(2):
            for kind, name in enumerate(OPERATIONS):
                if name in COLOUR:
                    images = _where(kinds[:, slot] == kind, COLOUR[name], images, 1 + ENHANCE * signs[:, slot])
        if not self.released:
            return _cutout(images, draws[:, 5:7], FILL)
        images = _cutout(images, draws[:, 5:7], 255 * draws[:, 7:10, None, None])
        factors = 0.6 + 0.8 * draws[:, 10:13]
        for column, change in enumerate((_brightness, _contrast, _colour)):
            images = _where(draws[:, 13] < 0.8, change, images, factors[:, column])
        return _where(draws[:, 14] < 0.2, _colour, images, torch.zeros_like(draws[:, 14]))


def _where(chosen: Tensor, change: Callable[[Tensor, Tensor], Tensor], images: Tensor, factor: Tensor) -> Tensor:
    """`change` applied to the chosen [B] pictures."""
    if images.is_cuda:  # to find the rows would make the GPU wait for the program; to change all costs it little
        changed = change(images, factor[:, None, None, None]).clamp_(0, 255)
        return torch.where(chosen[:, None, None, None], changed, images)
    rows = chosen.nonzero().flatten()
    if len(rows):
        images[rows] = change(images[rows], factor[rows, None, None, None]).clamp_(0, 255)
    return images


def _affine(flip: Tensor, kinds: Tensor, signs: Tensor) -> Tensor:
    """[B, 2, 3]: from a place in the new picture to one in the old, both from −1 to 1."""
    total = torch.eye(3, device=signs.device).repeat(len(flip), 1, 1)
    total[:, 0, 0] = torch.where(flip, -1.0, 1.0)
    for slot in range(2):
        step = torch.eye(3, device=signs.device).repeat(len(flip), 1, 1)
        drawn = {name: (kinds[:, slot] == OPERATIONS.index(name)) * signs[:, slot] for name in GEOMETRIC}
        angle = ANGLE * drawn["rotate"]
        step[:, 0, 0] = step[:, 1, 1] = angle.cos()
        step[:, 0, 1] = angle.sin() + SHEAR * drawn["shear-x"]
        step[:, 1, 0] = SHEAR * drawn["shear-y"] - angle.sin()
        step[:, 0, 2] = 2 * SHIFT * drawn["translate-x"]
        step[:, 1, 2] = 2 * SHIFT * drawn["translate-y"]
        total = total @ step
    return total[:, :2]


def _sample(images: Tensor, theta: Tensor, size: int) -> Tensor:
    grid = F.affine_grid(theta, [len(images), 3, size, size], align_corners=False)
    return F.grid_sample(images - FILL, grid, padding_mode="zeros", align_corners=False).add_(FILL)


def _cutout(images: Tensor, centre: Tensor, fill: float | Tensor) -> Tensor:
    place = (torch.arange(images.shape[-1], device=images.device) + 0.5) / images.shape[-1]
    inside = (place - centre[..., None]).abs() < 0.25  # [B, 2, size]: columns, rows
    patch = inside[:, None, 1, :, None] & inside[:, None, 0, None, :]
    return torch.where(patch, fill, images)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (red * 0.299 + green * 0.587 + blue * 0.114)[:, None]


def mean_level(grey: Tensor) -> Tensor:
    """The mean [..., 1, 1] of pictures [..., H, W], row by row: all at once, threads would share the sum of one."""
    return grey.mean(-1, keepdim=True).mean(-2, keepdim=True)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(mean_level(_grey(x)), x, factor)


def _colour(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_grey(x), x, factor)


def _sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Away from, or towards, a smooth copy; the border stays."""
    kernel = torch.ones(3, 1, 3, 3, device=x.device)
    kernel[:, :, 1, 1] = 5.0
    smooth = x.clone()
    smooth[..., 1:-1, 1:-1] = F.conv2d(x, kernel / 13, groups=3)
    return torch.lerp(smooth, x, factor)


def _autocontrast(x: Tensor, factor: Tensor) -> Tensor:
    """Each channel stretched to 0 … 255."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    wide = high > low
    return torch.where(wide, (x - low) * (255 / torch.where(wide, high - low, 1.0)), x)


def _equalize(x: Tensor, factor: Tensor) -> Tensor:
    """Each channel's grey levels made equally frequent: v -> 255·(cdf(v) − cdf_min)/(1 − cdf_min)."""
    step = max(1, x.shape[-1] // _SAMPLED)
    seen = x[..., ::step, ::step].round().flatten(2).sort(2).values
    levels = torch.arange(256.0, device=x.device).expand(*x.shape[:2], 256).contiguous()
    below = torch.searchsorted(seen, levels, right=True).float()  # pixels up to each level: [B, 3, 256]
    first = torch.searchsorted(seen, seen[..., :1].contiguous(), right=True).float()
    rest = seen.shape[2] - first
    table = torch.where(rest > 0, (below - first).clamp_(min=0) * 255 / rest.clamp(min=1), levels)
    return table.gather(2, x.round().long().flatten(2)).view_as(x)


def _solarize(x: Tensor, factor: Tensor) -> Tensor:
    return torch.where(x < SOLARIZE, x, 255 - x)


def _posterize(x: Tensor, factor: Tensor) -> Tensor:
    return (x.round() / POSTERIZE).floor() * POSTERIZE


COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "brightness": _brightness,
    "contrast": _contrast,
    "colour": _colour,
    "sharpness": _sharpness,
    "solarize": _solarize,
    "posterize": _posterize,
}
OPERATIONS = ("identity", *GEOMETRIC, *COLOUR)
