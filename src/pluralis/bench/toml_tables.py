"""Dataclasses from the tables of a TOML file; what does not fit is said with its place."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pluralis.errors import RecipeError, nearest


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key: TOML's own dotted keys and tables are taken apart, what stands under a quoted one is not.

    >>> flatten({"train": {"lr": 0.1}, "method.params": {"tau": 2}})
    {'train.lr': 0.1, 'method.params': {'tau': 2}}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if "." in key or not isinstance(value, dict) or not value:
            flat[key] = value
        else:
            flat |= {f"{key}.{inner}": v for inner, v in flatten(value).items()}
    return flat


def build(cls: Any, values: Any, where: str, what: str) -> Any:
    """The dataclass `cls` from a table; `what` is the kind of file, for errors."""
    if not isinstance(values, Mapping):
        raise RecipeError(f"{where} must be a table of keys, not {values!r}")
    hints, made = get_type_hints(cls), {}
    for key, value in values.items():
        place = f"{where}.{key}" if where else key
        if key not in hints:
            raise RecipeError(f"there is no key {place!r} in a {what}; {nearest(key, hints)}")
        if key in ("settings", "grid") and isinstance(value, Mapping):
            value = flatten(value)
        made[key] = _cast(value, hints[key], place, what)
    for part in dataclasses.fields(cls):
        required = part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING
        if required and part.name not in made:
            raise RecipeError(f"{f'{where} has no key' if where else 'there is no key'} {part.name!r}: add it")
    return cls(**made)


def _cast(value: Any, kind: Any, place: str, what: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, place, what)
    if origin is Literal:
        if value not in inner:
            raise RecipeError(f"{place} is {value!r}; it must be one of {', '.join(filter(None, inner))}")
        return value
    if origin in (Union, types.UnionType):
        fits = [k for k in inner if isinstance(value, get_origin(k) or k) and not isinstance(value, bool)]
        return _cast(value, fits[0] if fits else inner[0], place, what)
    plain = origin or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise RecipeError(f"{place} must be of type {plain.__name__}, not {value!r}")
    if origin is list and inner[0] is not Any:
        return [_cast(v, inner[0], f"{place}[{n}]", what) for n, v in enumerate(value)]
    if origin is dict and inner[1] is not Any:
        return {key: _cast(v, inner[1], f"{place}.{key}", what) for key, v in value.items()}
    return value
