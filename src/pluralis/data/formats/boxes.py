"""How much of a picture the boxes of one class cover."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_SIDE = 1e9  # pixels: larger numbers are no coordinates
Box = tuple[float, float, float, float]  # left, top, right and bottom edge


def is_box(left: float, top: float, right: float, bottom: float) -> bool:
    """Whether the edges are finite, of a possible size, and in their order."""
    return -MAX_SIDE < left <= right < MAX_SIDE and -MAX_SIDE < top <= bottom < MAX_SIDE


def covered(boxes: Sequence[Box]) -> float:
    """The area of the union of the boxes: of all pieces that their edges cut, those that lie in a box.

    A pixel under two boxes counts once: ten people in a row are no larger than the picture.

    >>> covered([(0, 0, 10, 10), (5, 5, 15, 15)])
    175.0
    """
    left, top, right, bottom = np.array(boxes, np.float64).T[:, :, None]
    x, y = np.unique([left, right]), np.unique([top, bottom])
    across, down = (left <= x[:-1]) & (x[1:] <= right), (top <= y[:-1]) & (y[1:] <= bottom)
    inside = down.T.astype(np.float32) @ across > 0
    return float(np.diff(y) @ inside @ np.diff(x))
