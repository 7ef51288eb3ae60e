"""Options of readers and writers, in the kinds that their signatures declare."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pluralis.errors import DataError, shown

_WORDS = {str: "a text", float: "a number", int: "a whole number", bool: "true or false", Sequence: "a list of names"}


def fit_options(format: str, call: Callable[..., Any], given: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` as `call` declares them behind its `given` first parameters; DataError where one does not fit.

    On a command line 2007 may be a number or a name: what is declared as text gets it as text, and the other way round.

    >>> def read(path: str, split: str = "train", least: float = 0.5) -> None: ...
    >>> fit_options("csv", read, 1, {"split": 2007, "least": "1e-3"})
    {'split': '2007', 'least': 0.001}
    """
    signature = inspect.signature(call)
    try:
        signature.bind(*(None for _ in range(given)), **options)
    except TypeError as error:
        accepted = ", ".join(list(signature.parameters)[given:])
        raise DataError(f"format {format!r}: {error}; its options are {accepted or 'none'}") from None
    kinds = get_type_hints(call)
    return {name: fit_option(format, name, value, kinds[name]) for name, value in options.items()}


def fit_option(format: str, name: str, value: Any, kind: Any) -> Any:
    """The value of one option as its annotation `kind` has it."""
    kinds = _parts(kind)
    if value is None and NoneType in kinds:
        return None
    for one in kinds:
        found = _as(value, one)
        if found is not None:
            return found
    wanted = " or ".join(_WORDS[one] for one in kinds if one in _WORDS)
    raise DataError(f"format {format!r}: {name}={shown(value)} is not possible; give {wanted}")


def _parts(kind: Any) -> list[Any]:
    """What an annotation allows: classes without what is in their brackets."""
    if get_origin(kind) in (Union, UnionType):
        return [part for one in get_args(kind) for part in _parts(one)]
    origin = get_origin(kind) or kind
    return [str if origin is Literal else origin]


def _as(value: Any, kind: Any) -> Any:
    """The value in that kind, or None."""
    if kind is str and isinstance(value, str):
        return value
    if kind is str and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    if kind is Path and isinstance(value, os.PathLike):
        return Path(value)
    if kind is Sequence and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        names = [_as(name, str) for name in value]
        return None if None in names else names
    if kind is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value))
    if kind in (int, float) and isinstance(value, str | Real) and not isinstance(value, bool):
        try:
            return float(value) if kind is float else _whole(value)
        except (ValueError, OverflowError):
            return None
    return None


def _whole(value: str | Real) -> int | None:
    """1e3 and 10.0 are whole numbers too."""
    try:
        return int(str(value))  # exact, however long it is
    except ValueError:
        number = float(value)
        return int(number) if number.is_integer() else None
