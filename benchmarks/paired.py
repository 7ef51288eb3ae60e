"""Figures over seeds, and what a method gains over another one under the same seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation, which a single value has none of.

    >>> summary([1.0, 2.0]), summary([3.0])
    ({'mean': 1.5, 'sd': 0.71}, {'mean': 3.0, 'sd': None})
    """
    spread = round(statistics.stdev(values), 2) if len(values) > 1 else None
    return {"mean": round(statistics.mean(values), 2), "sd": spread}


def gain(values: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """Mean and deviation of the differences, seed by seed: luck that both share falls out.

    >>> gain([11.0, 21.0], [10.0, 20.0])
    {'mean': 1.0, 'sd': 0.0}
    """
    return summary([value - other for value, other in zip(values, base, strict=True)])


def text(figures: dict[str, Any], sign: str = "") -> str:
    """`mean ± deviation`; a `sign` of + also marks gains."""
    spread = "" if figures["sd"] is None else f" ± {figures['sd']:.2f}"
    return f"{figures['mean']:{sign}.2f}{spread}"
