"""Many views of a picture at test time: other sizes, its mirror image and crops, for every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pluralis.data.augment import resize
from pluralis.errors import RecipeError, nearest
from pluralis.method import Predict
from pluralis.params import number

_CROPS = 3  # along each side


@dataclass(frozen=True)
class Views:
    """How a picture is looked at.

        z = (1 − w) · mean over sizes (and their mirror images) of z_view + w · max over 3×3 crops of z_crop

    scales       sides of the square that the network sees, as multiples of the run's size
    mirror       each of them also as its mirror image
    crop_weight  w; with 0 there are no crops. A crop has half the side of the picture and is brought to the run's size
    """

    scales: tuple[float, ...] = (1.0,)
    mirror: bool = False
    crop_weight: float = 0.0

    def __post_init__(self) -> None:
        if not self.scales:
            raise RecipeError("views: scales is empty; give at least one, such as 1.0")
        for scale in self.scales:
            number("views", "scales", scale, low=0.1, high=10.0)
        number("views", "crop_weight", self.crop_weight, low=0.0, high=1.0)

    @property
    def passes(self) -> int:
        """Pictures that go through the network for each one that is asked about."""
        return len(self.scales) * (1 + self.mirror) + (_CROPS**2 if self.crop_weight else 0)

    @property
    def work(self) -> float:
        """The cost in pixels, where one picture at the run's size is 1."""
        return sum(scale**2 for scale in self.scales) * (1 + self.mirror) + (_CROPS**2 if self.crop_weight else 0)

    def cost(self) -> str:
        if self.passes == 1:
            return "1 pass an image"
        return f"{self.passes} passes an image, {self.work:.1f} times the work of one"


VIEWS: dict[str, Views] = {
    "fast": Views(),
    "standard": Views((1.0, 1.25), mirror=True),
    "thorough": Views((1.0, 1.25), mirror=True, crop_weight=0.25),
}


def get_views(views: str | Views) -> Views:
    """The views of a name; others pass as they are.

    >>> get_views("thorough").cost()
    '13 passes an image, 14.1 times the work of one'
    """
    if isinstance(views, Views):
        return views
    if views not in VIEWS:
        raise RecipeError(f"there are no views {views!r}; {nearest(views, VIEWS)}")
    return VIEWS[views]


def views_name(views: str | Views) -> str:
    """The name under which views are known, or "" for those that somebody put together."""
    return next((name for name, known in VIEWS.items() if known == get_views(views)), "")


def view_logits(predict: Predict, pixels: Tensor, size: int, views: str | Views = "fast") -> Tensor:
    """Logits [B, C] of stored pictures [B, 3, H, W], which the network is used to see as squares of `size`.

    Every view is cut from the pixels as they are stored, so pictures stored larger than `size` show more in a larger
    view and in a crop. The crops of a batch go through the network together, nine times its rows: the caller chooses
    the batch for that. Feature vectors [B, D] have no views but `fast`.

    >>> mean_colour = lambda x: x.float().mean((2, 3))
    >>> left, right = torch.zeros(1, 3, 8, 4), torch.full((1, 3, 8, 4), 80.0)
    >>> view_logits(mean_colour, torch.cat([left, right], 3), 8, "thorough")  # 0.75 · 40 + 0.25 · 80
    tensor([[50., 50., 50.]])
    """
    views = get_views(views)
    if pixels.dim() == 2:
        if views.passes > 1:
            raise RecipeError('feature vectors cannot be resized, mirrored or cropped: use views = "fast"')
        return predict(pixels).float()
    batch, seen = len(pixels), []
    for scale in views.scales:
        square = resize(pixels, round(size * scale))
        both = _stack([square, square.flip(-1)]) if views.mirror else square
        try:
            seen.append(predict(both).float().unflatten(0, (1 + views.mirror, batch)))
        except AssertionError as error:  # timm's transformers assert the one size that they were made for
            if square.shape[-1] == size:
                raise
            side = square.shape[-1]
            raise RecipeError(f'the network takes no pictures of {side} px ({error}): use views = "fast"') from error
    logits = torch.cat(seen).mean(0)
    if not views.crop_weight:
        return logits
    crops = _stack([resize(crop, size) for crop in half_crops(pixels)])
    best = predict(crops).float().unflatten(0, (_CROPS**2, batch)).amax(0)
    return torch.lerp(logits, best, views.crop_weight)


def half_crops(pixels: Tensor) -> Iterator[Tensor]:
    """Nine overlapping parts of pictures [B, 3, H, W] with half of each side, in steps of a quarter, row by row."""
    height, width = pixels.shape[-2:]
    tall, wide = (height + 1) // 2, (width + 1) // 2
    for row in range(_CROPS):
        for column in range(_CROPS):
            top, left = (height - tall) * row // (_CROPS - 1), (width - wide) * column // (_CROPS - 1)
            yield pixels[..., top : top + tall, left : left + wide]


def _stack(images: list[Tensor]) -> Tensor:
    """One batch of all; many pictures go through a network nearly twice as fast in this layout on a CPU."""
    return torch.cat(images).contiguous(memory_format=torch.channels_last)
