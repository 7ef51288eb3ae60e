"""Options of a figure, checked before anything is run: names, types, and what values may be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pluralis.errors import RecipeError, nearest
from pluralis.params import choice, number, whole

ANY = ("rows", "columns")  # options of every kind: which runs it is drawn from
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "a text"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "float": (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    "str | Sequence[str]": (lambda value: isinstance(value, str) or _texts(value), "a text or a list of texts"),
    "Sequence[Any]": (lambda value: isinstance(value, list), "a list"),
}
"""By the annotation of a parameter: whether a value is right, and what would be."""
_CHOICES = {"part": ("train", "test"), "against": ("probability", "logit")}
_LEAST = {"bins": 2, "most": 1, "count": 1, "labels": 1, "dimensions": 1, "steps": 3, "images": 1, "classes": 2}


def check_options(kind: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse what the function that draws a kind would not take."""
    owner = f"figure {kind}"
    known = {name: p for name, p in inspect.signature(function).parameters.items() if name != "runs"}
    for name, value in options.items():
        if name not in (*known, *ANY):
            raise RecipeError(f"{owner}: unknown option {name!r}; {nearest(name, (*known, *ANY))}")
        if name in ANY and not _texts(value):
            raise RecipeError(f"{owner}: {name} is {value!r}; give a list of names")
        if name in known:
            right, would_be = _TYPES[known[name].annotation]
            if not right(value):
                raise RecipeError(f"{owner}: {name} is {value!r}; give {would_be}")
        _check_value(owner, name, value)
    for name, p in known.items():
        if p.default is inspect.Parameter.empty and name not in options:
            raise RecipeError(f"{owner}: needs the option {name!r}: add {name} = …")


def _check_value(owner: str, name: str, value: Any) -> None:
    if name in _CHOICES:
        choice(owner, name, value, _CHOICES[name])
    elif name in _LEAST:
        whole(owner, name, value, low=_LEAST[name], high=2 if name == "dimensions" else 2**31)
    elif name in ("reach", "highest"):
        number(owner, name, value, above=0.0)
    elif name in ("key", "lines") and value:
        _check_key(owner, name, value)
    elif name == "losses":
        from pluralis.bench.figures.gradients import Asked

        for entry in value:
            Asked.read(entry).make()
    elif name == "loss" and value:
        from pluralis.losses import LOSSES  # torch takes a while

        choice(owner, name, value, LOSSES)


def _check_key(owner: str, name: str, value: str) -> None:
    """Of a recipe; what methods and readers take as parameters is theirs to know."""
    from pluralis.config import Recipe

    known = [f"{section}.{key}" for section, values in Recipe().to_dict().items() for key in values]
    if ".".join(value.split(".")[:2]) not in known:
        raise RecipeError(f"{owner}: {name} is {value!r}, which no recipe has; {nearest(value, known)}")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
