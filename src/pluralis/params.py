"""Checks of the parameters that people write into recipes: what is wrong, where, and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pluralis.errors import RecipeError


def number(
    owner: str,
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """`value` as a float, if it is a finite number within [low, high] and inside (above, below)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RecipeError(f"{owner}: {name} is {value!r}; give a finite number")
    for wrong, bound in (
        (value < low, f"of at least {low:g}"),
        (value > high, f"of at most {high:g}"),
        (value <= above, f"above {above:g}"),
        (value >= below, f"below {below:g}"),
    ):
        if wrong:
            raise RecipeError(f"{owner}: {name} is {value!r}; give a number {bound}")
    return float(value)


def whole(owner: str, name: str, value: int, low: int = 0, high: int = 2**31) -> int:
    """`value`, if it is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RecipeError(f"{owner}: {name} is {value!r}; give a whole number from {low} to {high}")
    return value


def flag(owner: str, name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise RecipeError(f"{owner}: {name} is {value!r}; give true or false")
    return value


def choice(owner: str, name: str, value: str, allowed: Iterable[str]) -> str:
    allowed = tuple(allowed)
    if value not in allowed:
        raise RecipeError(f"{owner}: {name} is {value!r}; it must be one of {', '.join(allowed)}")
    return value
