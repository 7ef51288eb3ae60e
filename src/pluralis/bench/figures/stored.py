"""What a figure is drawn from: the stored results of runs, and the run folders that were kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pluralis.errors import DataError, PluralisError, nearest

if TYPE_CHECKING:
    from pluralis.bench.store import Result


In = TypeVar("In")
Out = TypeVar("Out")


_NEEDED = object()


def setting(run: Result, key: str, default: Any = _NEEDED) -> Any:
    """The value of a dotted key of the recipe, such as `train.lr`; an error where there is none and no default."""
    value: Any = run.recipe
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            if default is not _NEEDED:
                return default
            known = _keys(run.recipe)
            raise DataError(f"the recipe of {describe(run)} has no {key!r}: {nearest(key, known)}")
        value = value[part]
    return value


def metric(run: Result, name: str) -> float:
    """A figure of the test set; NaN where it could not be measured."""
    if name not in run.test:
        raise DataError(f"{describe(run)} has no test figure {name!r}: {nearest(name, run.test)}")
    value = run.test[name]
    return math.nan if value is None else float(value)


def kept(run: Result) -> Path:
    """The run's folder, which not every bench keeps."""
    if run.folder is None or not (run.folder / "model.json").exists():
        raise DataError(
            f"the folder of {describe(run)} was not kept: set keep = true in the spec and run the bench again"
        )
    return run.folder


def describe(run: Result) -> str:
    return f"the run {full_name(run)!r} (seed {run.seed})"


def full_name(run: Result) -> str:
    return ", ".join(part for part in (run.row, run.column) if part)


def by_name(runs: Sequence[Result]) -> dict[str, list[Result]]:
    """The runs of each line of a figure (a row, in a column where there are several), in the order of the results."""
    several = len({run.column for run in runs}) > 1
    groups: dict[str, list[Result]] = {}
    for run in runs:
        groups.setdefault(full_name(run) if several else run.row, []).append(run)
    return groups


def kept_by_name(runs: Sequence[Result]) -> dict[str, list[Result]]:
    """The same of the runs whose folders were kept; an error if there are none."""
    there = [run for run in runs if run.folder is not None]
    if not there:
        kept(runs[0])
    return by_name(there)


def each_that_can(groups: Mapping[str, In], make: Callable[[In], Out]) -> tuple[dict[str, Out], str]:
    """What `make` gives for each, and a sentence about those for which it cannot; an error if it can for none.

    >>> each_that_can({"an": "7", "gr": "8"}, int)
    ({'an': 7, 'gr': 8}, '')
    """
    found: dict[str, Out] = {}
    errors: dict[str, PluralisError] = {}
    for name, group in groups.items():
        try:
            found[name] = make(group)
        except PluralisError as error:
            errors[name] = error
    if not found and errors:
        raise next(iter(errors.values()))
    return found, " ".join(f"Left out: {name}, as {error}." for name, error in errors.items())


def _keys(values: Mapping[str, Any], before: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        found += _keys(value, f"{before}{key}.") if isinstance(value, Mapping) else [before + key]
    return found
