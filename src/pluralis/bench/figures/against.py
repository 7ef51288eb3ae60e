"""A test figure against a setting of the recipe: the share of known labels, or any other that was varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures import stored
from pluralis.bench.figures.canvas import GREY, legend, looks, new_figure
from pluralis.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

SHARE = "data.protocol_share"


@dataclass(frozen=True)
class Points:
    """Mean and sample standard deviation over seeds at each value, ascending; one seed has no deviation (NaN)."""

    x: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.int64]


def points(pairs: Sequence[tuple[float, float]]) -> Points:
    """From (value of the setting, figure of a run).

    >>> points([(1.0, 70.0), (0.1, 50.0), (1.0, 72.0)])
    Points(x=array([0.1, 1. ]), mean=array([50., 71.]), deviation=array([       nan, 1.41421356]), seeds=array([1, 2]))
    """
    at: dict[float, list[float]] = {}
    for x, y in pairs:
        if np.isfinite(y):
            at.setdefault(float(x), []).append(y)
    values = [at[x] for x in sorted(at)]
    return Points(
        np.array(sorted(at)),
        np.array([np.mean(v) for v in values]),
        np.array([np.std(v, ddof=1) if len(v) > 1 else np.nan for v in values]),
        np.array([len(v) for v in values]),
    )


def known_share(run: Result) -> float:
    """Percent of the labels, or of the present ones, that training is shown."""
    protocol = stored.setting(run, "data.protocol")
    if protocol in ("known-ratio", "drop-positives", "flip-positives"):
        return 100 * float(stored.setting(run, SHARE))
    if protocol == "complete":
        return 100.0
    raise DataError(
        f"{stored.describe(run)} has data.protocol = {protocol!r}, which is no share of labels: leave it out with"
        ' rows = […] or columns = […], or use data.protocol = "known-ratio"'
    )


def known_ratio(runs: Sequence[Result], metric: str = "mAP") -> Figure:
    """By the share of labels that training is shown: mean ± standard deviation over runs."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        lines.setdefault(run.spec_row, []).append((known_share(run), stored.metric(run, metric)))
    found = {name: points(pairs) for name, pairs in lines.items()}
    return _draw(found, "known labels, %", f"test {metric}, %")


def sweep(runs: Sequence[Result], key: str, lines: str = "", metric: str = "mAP", baseline: str = "") -> Figure:
    """By a setting of the recipe: mean ± standard deviation over runs.

    The setting is `key`; a line is a value of the setting `lines`, or a row of the spec. The row `baseline` is a dashed
    line across.
    """
    rest = [run for run in runs if run.row != baseline]
    others = [stored.metric(run, metric) for run in runs if run.row == baseline]
    if baseline and not others:
        raise DataError(f"there is no finished run of the baseline {baseline!r} to compare a sweep with")
    level = {baseline: float(np.mean(others))} if others else {}
    return _draw(sweep_lines(rest, key, lines, metric), key, f"test {metric}, %", level)


def sweep_lines(runs: Sequence[Result], key: str, lines: str, metric: str) -> dict[str, Points]:
    """The points of each line; columns of a table are lines of their own."""
    several = len({run.column for run in runs}) > 1
    pairs: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        value = stored.setting(run, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{key} is {value!r} in {stored.describe(run)}: a sweep needs numbers; name another key")
        name = f"{lines} = {_short(stored.setting(run, lines))}" if lines else run.spec_row
        pairs.setdefault(f"{name}, {run.column}" if several else name, []).append((value, stored.metric(run, metric)))
    return {name: points(found) for name, found in pairs.items()}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _draw(found: Mapping[str, Points], xlabel: str, ylabel: str, level: Mapping[str, float] | None = None) -> Figure:
    found = {name: line for name, line in found.items() if len(line.x)}
    if not found:
        raise DataError(f"there is no finished run with a {ylabel}")
    figure, (axes,) = new_figure()
    for (name, line), look in zip(found.items(), looks(found).values(), strict=True):
        axes.errorbar(line.x, line.mean, np.nan_to_num(line.deviation), label=name, capsize=3, **look)
    for name, value in (level or {}).items():
        axes.axhline(value, color=GREY, ls="--", label=name)
    every = np.unique(np.concatenate([line.x for line in found.values()]))
    if every[0] > 0 and every[-1] / every[0] >= 30:
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(every, [f"{x:g}" for x in every])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend(figure, axes)
    return figure
