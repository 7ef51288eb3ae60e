"""Embedded data: cluttered scenes of real handwritten digits, made on the spot, so that nothing is downloaded.

The pictures come from scikit-learn's `load_digits` (1,797 digits of 8×8 pixels). A scene is planned from one
random generator per image, then many scenes are drawn together, one layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pluralis.errors import DataError

Split = Literal["train", "val", "test"]
Floats = NDArray[np.float32]

CLASSES = tuple("0123456789")
# Within each class the digits are dealt out in turns of ten, so every split sees every class and no digit twice.
_TURNS: dict[str, tuple[int, ...]] = {"train": (0, 1, 2, 3, 4, 5), "val": (6, 7), "test": (8, 9)}
_SCENES, _SINGLE = 0, 1  # the last word of a generator's key, so that the two kinds share no randomness
_CHUNK = 16  # images drawn together; so few that their layers stay in the processor's cache

_MAX_DIGITS, _FRAGMENTS, _STROKES = 6, 3, 3
_PLACES = 12  # positions tried for each digit before the least crowded one is taken
# Chances of 1 to 6 digits. Classes repeat by chance, so this gives 3.05 distinct labels an image.
_COUNT_CHANCES = np.array([0.07, 0.16, 0.26, 0.26, 0.16, 0.09])
_SIZE_RANGE = (0.30, 0.56)  # height of a digit as a share of the image
_CONTRAST_RANGE = (0.20, 0.50)  # brightness of ink against the background
_NOISE_RANGE = (0.03, 0.22)
_MAX_OVERLAP = 0.40  # of the smaller of two digits' boxes


@dataclass(frozen=True)
class Scenes:
    """Images `[N, 3, size, size]` uint8, complete truth `[N, 10]` in {+1, −1}, and the class names."""

    images: Tensor
    truth: NDArray[np.int8]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """What to draw in B images: `digit` is a row of `load_digits`, −1 where a place stays empty."""

    digit: NDArray[np.int64]  # [B, 6]
    box: Floats  # [B, 6, 4] as left, top, width, height in pixels
    fragment: NDArray[np.int64]  # [B, 3]
    fragment_box: Floats  # [B, 3, 4]
    fragment_part: NDArray[np.int64]  # [B, 3] which side of the digit is left over
    stroke: Floats  # [B, 3, 5] as x0, y0, x1, y1, half width in pixels; half width 0 is no stroke
    ink: Floats  # [B, 12, 3] colours of digits, fragments, strokes
    background: Floats  # [B, 2, 3] colours at the two ends of a gradient
    slope: Floats  # [B, 2] direction of the gradient
    noise: Floats  # [B, 3, size, size]


def make_scenes(split: Split, count: int, seed: int = 0, size: int = 48) -> Scenes:
    """`count` scenes of 1 to 6 digits. The same arguments give the same bytes; a larger `count` only adds images.

    >>> scenes = make_scenes("train", 2)
    >>> tuple(scenes.images.shape), scenes.truth.shape
    ((2, 3, 48, 48), (2, 10))
    """
    images, digits = _make(split, count, seed, size, _SCENES)
    labels = _digits()[1]
    truth = np.full((count, len(CLASSES)), -1, dtype=np.int8)
    row, place = np.nonzero(digits >= 0)
    truth[row, labels[digits[row, place]]] = 1
    return Scenes(images, truth, CLASSES)


def single_digits(count: int, seed: int = 0, size: int = 48, split: Split = "train") -> tuple[Tensor, Tensor]:
    """Images of one digit among the same clutter, and which digit: what ImageNet is to photographs."""
    images, digits = _make(split, count, seed, size, _SINGLE)
    return images, torch.from_numpy(_digits()[1][digits[:, 0]].astype(np.int64))


def digit_rows(split: Split) -> NDArray[np.int64]:
    """The rows of `load_digits` that a split is made of; no row belongs to two splits."""
    if split not in _TURNS:
        raise DataError(f"unknown split {split!r} of the digit scenes: choose one of {', '.join(_TURNS)}")
    labels = _digits()[1]
    turn = np.empty(len(labels), dtype=np.int64)
    for digit in range(len(CLASSES)):
        members = np.flatnonzero(labels == digit)
        turn[members] = np.arange(len(members)) % 10
    return np.flatnonzero(np.isin(turn, _TURNS[split]))


@cache
def _digits() -> tuple[Floats, NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # slow to import, and only needed once something is drawn

    data = load_digits()
    return (data.images / 16).astype(np.float32), data.target.astype(np.int64)


def _make(split: Split, count: int, seed: int, size: int, kind: int) -> tuple[Tensor, NDArray[np.int64]]:
    if count < 1 or seed < 0 or size < 24:
        raise DataError(
            f"digit scenes of count={count}, seed={seed}, size={size} cannot be made: "
            "give a count of at least 1, a seed of at least 0 and a size of at least 24"
        )
    images, digits = np.empty((count, 3, size, size), dtype=np.uint8), []
    for start, plan in _plans(split, count, seed, size, kind):
        images[start : start + len(plan.digit)] = _draw(plan)
        digits.append(plan.digit)
    return torch.from_numpy(images), np.concatenate(digits)


def _plans(split: Split, count: int, seed: int, size: int, kind: int) -> Iterator[tuple[int, _Plan]]:
    rows = digit_rows(split)
    for start in range(0, count, _CHUNK):
        index = range(start, min(start + _CHUNK, count))
        key = [seed, list(_TURNS).index(split), kind]
        yield start, _plan([np.random.default_rng([*key, i]) for i in index], rows, size, kind)


def _plan(generators: list[np.random.Generator], rows: NDArray[np.int64], size: int, kind: int) -> _Plan:
    """Every generator is asked for the same amounts in the same order, whatever the scene turns out to hold."""

    def uniform(*shape: int) -> Floats:
        return np.stack([g.random(shape, dtype=np.float32) for g in generators])

    def between(low: float, high: float, u: Floats) -> Floats:
        return (low + (high - low) * u).astype(np.float32)

    images = len(generators)
    amount = np.searchsorted(np.cumsum(_COUNT_CHANCES)[:-1], uniform(1)[:, 0], side="right") + 1
    if kind == _SINGLE:
        amount[:] = 1
    used = np.arange(_MAX_DIGITS) < amount[:, None]
    digit = np.where(used, rows[(uniform(_MAX_DIGITS) * len(rows)).astype(np.int64)], -1)
    box = _place(between(*_SIZE_RANGE, uniform(_MAX_DIGITS)) * size, uniform(_MAX_DIGITS, 1 + 2 * _PLACES), size)

    u = uniform(_FRAGMENTS, 6)
    fragment = np.where(u[..., 0] < 0.5, rows[(u[..., 1] * len(rows)).astype(np.int64)], -1)
    side = between(*_SIZE_RANGE, u[..., 2]) * size
    fragment_box = np.stack([u[..., 3] * size - side / 2, u[..., 4] * size - side / 2, side, side], axis=-1)

    stroke = uniform(_STROKES, 6)
    stroke[..., 2:4] = stroke[..., :2] + (stroke[..., 2:4] - 0.5) * 0.7  # strokes about as long as digits are
    stroke[..., :4] *= size
    stroke[..., 4] = np.where(stroke[..., 5] < 0.5, between(0.012, 0.03, stroke[..., 4]) * size, 0)

    background, ink = _colours(uniform(2, 4), uniform(_MAX_DIGITS + _FRAGMENTS + _STROKES, 4))
    slope = uniform(2) - 0.5
    strength = between(*_NOISE_RANGE, uniform(1)).reshape(images, 1, 1, 1)
    noise = (uniform(3, size, size) - 0.5) * strength
    part = (u[..., 5] * 4).astype(np.int64)
    return _Plan(digit, box, fragment, fragment_box, part, stroke[..., :5], ink, background, slope, noise)


def _place(height: Floats, u: Floats, size: int) -> Floats:
    """Put each digit at the first tried position that overlaps no earlier one much, else at the freest."""
    images = len(height)
    width = height * (0.75 + 0.35 * u[..., 0])
    box = np.zeros((images, _MAX_DIGITS, 4), dtype=np.float32)
    tries = u[..., 1:].reshape(images, _MAX_DIGITS, _PLACES, 2)
    for k in range(_MAX_DIGITS):
        w, h = width[:, k, None], height[:, k, None]
        left, top = tries[:, k, :, 0] * (size - w), tries[:, k, :, 1] * (size - h)
        worst = np.zeros((images, _PLACES), dtype=np.float32)
        for x, y, v, g in (box[:, j].T[..., None] for j in range(k)):
            across = np.minimum(left + w, x + v) - np.maximum(left, x)
            down = np.minimum(top + h, y + g) - np.maximum(top, y)
            shared = np.maximum(across, 0) * np.maximum(down, 0)
            worst = np.maximum(worst, shared / np.minimum(w * h, v * g))
        best = np.argmin(np.where(worst <= _MAX_OVERLAP, 0, worst), axis=1)
        pick = np.arange(images)
        box[:, k] = np.stack([left[pick, best], top[pick, best], w[:, 0], h[:, 0]], axis=-1)
    return box


def _colours(back: Floats, ink: Floats) -> tuple[Floats, Floats]:
    """Backgrounds from dark to middling, and inks brighter than them by at least the smallest contrast."""
    level = 0.10 + 0.35 * back[:, :1, 3:]
    background = level + 0.16 * (back[..., :3] - 0.5)
    low, high = _CONTRAST_RANGE
    contrast = low + (high - low) * ink[..., 3:]
    tint = ink[..., :3] - ink[..., :3].mean(axis=-1, keepdims=True)  # colour without a change of brightness
    return background.astype(np.float32), (level + contrast + 0.3 * tint).astype(np.float32)


def _draw(plan: _Plan) -> NDArray[np.uint8]:
    size = plan.noise.shape[-1]
    ramp = (np.arange(size, dtype=np.float32) + 0.5) / size - 0.5
    mix = 0.5 + plan.slope[:, :1, None] * ramp + plan.slope[:, 1:, None] * ramp[:, None]
    one, two = plan.background[:, 0, :, None, None], plan.background[:, 1, :, None, None]
    canvas = one + (two - one) * mix[:, None]
    pictures = _digits()[0]
    for k in range(_FRAGMENTS):
        on = np.flatnonzero(plan.fragment[:, k] >= 0)
        piece = pictures[plan.fragment[on, k]] * _PARTS[plan.fragment_part[on, k]]
        _paint(canvas, on, _enlarge(piece, plan.fragment_box[on, k], size), plan.ink[on, _MAX_DIGITS + k])
    for k in range(_STROKES):
        on = np.flatnonzero(plan.stroke[:, k, 4] > 0)
        _paint(canvas, on, _line(plan.stroke[on, k], size), plan.ink[on, _MAX_DIGITS + _FRAGMENTS + k])
    for k in range(_MAX_DIGITS):  # digits come last: clutter never hides one that the truth lists
        on = np.flatnonzero(plan.digit[:, k] >= 0)
        _paint(canvas, on, _enlarge(pictures[plan.digit[on, k]], plan.box[on, k], size), plan.ink[on, k])
    return np.clip((canvas + plan.noise) * 255 + 0.5, 0, 255).astype(np.uint8)


def _paint(canvas: Floats, rows: NDArray[np.int64], cover: Floats, ink: Floats) -> None:
    below = canvas[rows]
    canvas[rows] = below + cover[:, None] * (ink[:, :, None, None] - below)


def _enlarge(picture: Floats, box: Floats, size: int) -> Floats:
    """Cover `[B, size, size]` of 8×8 pictures stretched to their boxes by a cubic B-spline."""
    at = np.arange(size, dtype=np.float32) + 0.5
    cell = np.arange(8, dtype=np.float32) + 0.5

    def weights(start: Floats, length: Floats) -> Floats:
        d = np.abs((at[None] - start[:, None])[..., None] * (8 / length[:, None, None]) - cell)
        near, far = 2 / 3 - d * d * (1 - d / 2), np.maximum(2 - d, 0) ** 3 / 6
        return np.where(d < 1, near, far).astype(np.float32)

    smooth = weights(box[:, 1], box[:, 3]) @ picture @ weights(box[:, 0], box[:, 2]).transpose(0, 2, 1)
    return np.clip(smooth * 2.2 - 0.55, 0, 1)  # the spline blurs; this gives strokes their edges back


def _line(stroke: Floats, size: int) -> Floats:
    """Cover `[B, size, size]` of straight strokes: one minus the distance beyond half their width."""
    x0, y0, x1, y1, half = stroke.T[..., None, None]
    at = np.arange(size, dtype=np.float32) + 0.5
    x, y = at[None, None, :] - x0, at[None, :, None] - y0
    dx, dy = x1 - x0, y1 - y0
    t = np.clip((x * dx + y * dy) / np.maximum(dx * dx + dy * dy, 1e-3), 0, 1)
    return np.clip(half + 0.5 - np.sqrt((x - t * dx) ** 2 + (y - t * dy) ** 2), 0, 1)


# What is left of a digit in a fragment: its top, bottom, left or right three eighths.
_PARTS: Floats = np.zeros((4, 8, 8), dtype=np.float32)
_PARTS[0, :3], _PARTS[1, 5:], _PARTS[2, :, :3], _PARTS[3, :, 5:] = 1, 1, 1, 1
