"""The gain in average precision of each class over a baseline (Zhou et al., ECCV 2022, Figure 4c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import COLOURS, new_figure, shorten
from pluralis.bench.figures.stored import by_name, each_that_can
from pluralis.errors import DataError, nearest
from pluralis.params import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result


@dataclass(frozen=True)
class Gains:
    """Percent points for each class [C], from the largest; the deviation is over `pairs` of runs (NaN for one)."""

    classes: tuple[str, ...]
    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]
    pairs: int


def gains(runs: Sequence[Result], baseline: Sequence[Result]) -> Gains:
    """Runs are compared with those of the baseline that have the same column, draw and seed.

    Classes whose AP is not known in one of a pair, as they are never present in the test set, are left out.
    """
    same = {(run.column, run.draw, run.seed): run for run in baseline}
    pairs = [(run, same[key]) for run in runs if (key := (run.column, run.draw, run.seed)) in same]
    if not pairs:
        raise DataError("no two runs of a row and of the baseline have the same column, draw and seed: run both")
    known = [
        name
        for name in pairs[0][0].per_class_ap
        if all(run.per_class_ap.get(name) is not None for pair in pairs for run in pair)
    ]
    if not known:
        raise DataError(f"the runs {pairs[0][0].row!r} and {pairs[0][1].row!r} hold no AP of the same class")
    ours, theirs = (
        np.array([[run.per_class_ap[name] for name in known] for run in side], dtype=np.float64)
        for side in zip(*pairs, strict=True)
    )
    difference = ours - theirs
    mean = difference.mean(0)
    order = np.argsort(-mean, kind="stable")
    deviation = difference.std(0, ddof=1) if len(pairs) > 1 else np.full(len(known), np.nan)
    return Gains(tuple(known[i] for i in order), mean[order], deviation[order], len(pairs))


def class_gain(runs: Sequence[Result], baseline: str, most: int = 40) -> Figure:
    """Gain in average precision of each class over the baseline: mean over pairs of runs with the same seed and draw of
    labels, ± standard deviation (Zhou et al., ECCV 2022, Figure 4c).

    Of many classes the `most` that change most.
    """
    most = whole("figure class-gain", "most", most, low=1)
    rows = sorted({run.row for run in runs})
    if baseline not in rows:
        raise DataError(f"there is no finished run of the baseline {baseline!r}: {nearest(baseline, rows)}")
    others = by_name([run for run in runs if run.row != baseline])
    if not others:
        raise DataError(f"there is no finished run beside those of the baseline {baseline!r}")
    base = [run for run in runs if run.row == baseline]
    found, left = each_that_can(others, lambda group: gains(group, base))
    tall = 1.2 + 0.22 * max(min(most, len(gain.classes)) for gain in found.values())
    figure, panels = new_figure(len(found), columns=2, size=(4.6, tall))
    figure.set_label(left)
    for axes, (name, gain) in zip(panels, found.items(), strict=True):
        shown = np.sort(np.argsort(-np.abs(gain.mean), kind="stable")[:most])[::-1]
        places = np.arange(len(shown))
        colours = [COLOURS[0] if gain.mean[c] >= 0 else COLOURS[1] for c in shown]
        axes.barh(places, gain.mean[shown], xerr=np.nan_to_num(gain.deviation[shown]), color=colours, ecolor="#333333")
        axes.set_yticks(places, [shorten(gain.classes[c], 24) for c in shown], fontsize=8)
        axes.axvline(0, color="#333333", lw=0.8)
        axes.grid(axis="y", visible=False)
        better = float((gain.mean > 0).mean())
        axes.set_title(f"{shorten(name)}: {better:.0%} of the classes gain", fontsize=10)
        axes.set_xlabel(f"AP − AP of {shorten(baseline, 20)}, points")
    return figure
