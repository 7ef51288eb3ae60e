"""A test figure against a setting of the recipe: the share of known labels, or any other that was varied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures import stored
from pluralis.bench.figures.canvas import GREY, legend, looks, new_figure
from pluralis.bench.names import line_name
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
    rows: dict[str, list[Result]] = {}
    for run in runs:
        rows.setdefault(run.row, []).append(run)
    found, left = stored.each_that_can(rows, lambda group: [(run, known_share(run)) for run in group])
    pairs = [pair for group in found.values() for pair in group]
    series = _series(pairs)
    lines: dict[str, list[tuple[float, float]]] = {}
    for run, share in pairs:
        name = ", ".join(filter(None, (run.row, series[run.column])))
        lines.setdefault(name, []).append((share, stored.metric(run, metric)))
    figure = _draw({name: points(each) for name, each in lines.items()}, "known labels, %", f"test {metric}, %")
    figure.set_label(left)
    return figure


def _series(pairs: Sequence[tuple[Result, float]]) -> dict[str, str]:
    """By column what it has in common with others of other shares: "VOC" of "VOC 10 %" and "VOC 20 %".

    Where no two columns have the same share, all of them are one series.
    """
    shares: dict[float, set[str]] = {}
    for run, share in pairs:
        shares.setdefault(share, set()).add(run.column)
    if all(len(columns) == 1 for columns in shares.values()):
        return {run.column: "" for run, _ in pairs}

    def common(column: str, share: float) -> str:
        number = rf"(?<![\d.]){re.escape(f'{share:g}')}\s*%|(?<![\d.]){re.escape(f'{share / 100:g}')}(?![\d.])"
        return re.sub(r"\s+", " ", re.sub(number, "", column)).strip(" ,:")

    return {run.column: common(run.column, share) for run, share in pairs}


def sweep(runs: Sequence[Result], key: str, lines: str = "", metric: str = "mAP", baseline: str = "") -> Figure:
    """By a setting of the recipe: mean ± standard deviation over runs.

    The setting is `key`; a line is a value of the setting `lines`, or a row of the spec, in each column, and for each
    value of what else was varied. The row `baseline` is a dashed line across.
    """
    rest = [run for run in runs if run.row != baseline]
    found, left = sweep_lines(rest, key, lines, metric)
    columns = dict.fromkeys(run.column for run in rest)
    levels: dict[str, float] = {}
    for column in columns:
        others = [stored.metric(run, metric) for run in runs if (run.row, run.column) == (baseline, column)]
        if others:
            levels[f"{baseline}, {column}" if len(columns) > 1 else baseline] = float(np.mean(others))
    if baseline and not levels:
        raise DataError(f"there is no finished run of the baseline {baseline!r} to compare a sweep with")
    figure = _draw(found, key, f"test {metric}, %", levels)
    figure.set_label(left)
    return figure


def sweep_lines(runs: Sequence[Result], key: str, lines: str, metric: str) -> tuple[dict[str, Points], str]:
    """The points of each line, and a sentence about those that have none."""
    columns, rows = len({run.column for run in runs}) > 1, len({run.spec_row for run in runs}) > 1
    groups: dict[str, list[Result]] = {}
    for run in runs:
        varied = run.grid if run.row != run.spec_row else {}  # else it holds what was chosen
        varied = {name: value for name, value in varied.items() if name not in (key, lines)}
        name = line_name(run.spec_row, varied) if rows or not lines else line_name("", varied)
        value = f"{lines} = {_short(stored.setting(run, lines, None))}" if lines else ""
        parts = (name.strip(", "), value, run.column if columns else "")
        groups.setdefault(", ".join(filter(None, parts)), []).append(run)
    found, left = stored.each_that_can(groups, lambda group: [_pair(run, key, lines, metric) for run in group])
    return {name: points(pairs) for name, pairs in found.items()}, left


def _pair(run: Result, key: str, lines: str, metric: str) -> tuple[float, float]:
    value = stored.setting(run, key)
    if lines:
        stored.setting(run, lines)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{key} is {value!r} in {stored.describe(run)}: a sweep needs numbers; name another key")
    return float(value), stored.metric(run, metric)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _draw(found: Mapping[str, Points], xlabel: str, ylabel: str, level: Mapping[str, float] | None = None) -> Figure:
    found = {name: line for name, line in found.items() if len(line.x)}
    if not found:
        raise DataError(f"there is no finished run with a {ylabel}")
    figure, (axes,) = new_figure()
    for (name, line), look in zip(found.items(), looks(found).values(), strict=True):
        axes.errorbar(line.x, line.mean, np.nan_to_num(line.deviation), label=name, capsize=3, **look)
    for (name, value), dash in zip((level or {}).items(), cycle(("--", ":", "-.")), strict=False):
        axes.axhline(value, color=GREY, ls=dash, label=name)
    every = np.unique(np.concatenate([line.x for line in found.values()]))
    if every[0] > 0 and every[-1] / every[0] >= 30:
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(every, [f"{x:g}" for x in every])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    legend(figure, axes)
    return figure
