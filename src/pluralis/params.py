"""Checks of the parameters that people write into recipes: what is wrong, where, and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

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
    """`value` as a float, if it is a finite number within [low, high] and inside (above, below).

    NumPy's numbers and tensors of one are numbers too.
    """
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise RecipeError(f"{owner}: {name} is {value!r}; give a finite number")
    bound = ""  # no text is made where all is well: functions ask at every call
    if value < low:
        bound = f"of at least {low:g}"
    elif value > high:
        bound = f"of at most {high:g}"
    elif value <= above:
        bound = f"above {above:g}"
    elif value >= below:
        bound = f"below {below:g}"
    if bound:
        raise RecipeError(f"{owner}: {name} is {value!r}; give a number {bound}")
    return float(value)


def number_or_list(owner: str, name: str, value: Any, low: float = -math.inf, **bounds: float) -> float | list[float]:
    """`number`, or a list of them where a list, a tuple, an array [C] or a tensor [C] is given."""
    if getattr(value, "ndim", 0) == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return number(owner, name, value, low, **bounds)
    if not value:
        raise RecipeError(f"{owner}: {name} is an empty list; give a number, or one for each class")
    return [number(owner, f"{name}[{i}]", each, low, **bounds) for i, each in enumerate(value)]


def whole(owner: str, name: str, value: int, low: int = 0, high: int = 2**31) -> int:
    """`value`, if it is a whole number from `low` to `high`, as an int."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        raise RecipeError(f"{owner}: {name} is {value!r}; give a whole number from {low} to {high}")
    return int(value)


def flag(owner: str, name: str, value: bool) -> bool:
    value = _plain(value)
    if not isinstance(value, bool):
        raise RecipeError(f"{owner}: {name} is {value!r}; give true or false")
    return value


def choice(owner: str, name: str, value: str, allowed: Iterable[str]) -> str:
    allowed = tuple(allowed)
    if value not in allowed:
        raise RecipeError(f"{owner}: {name} is {value!r}; it must be one of {', '.join(allowed)}")
    return value


def _plain(value: Any) -> Any:
    """What a NumPy number or a tensor without dimensions holds."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
