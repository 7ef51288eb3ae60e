"""How well present and absent labels that nobody wrote down are told apart: densities and Wasserstein distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import COLOURS, GREY, legend, looks, new_figure, shorten
from pluralis.bench.figures.predicted import Predictions, predictions
from pluralis.bench.figures.stored import each_that_can, kept_by_name
from pluralis.errors import DataError, nearest
from pluralis.params import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Densities:
    """Histograms over equal bins of [0, 1], each with area 1, or 0 where there is no such label."""

    edges: Floats  # [bins + 1]
    present: Floats  # [bins]
    absent: Floats
    counts: tuple[int, int]  # of present and absent labels


def densities(found: Sequence[Predictions], bins: int = 50) -> Densities:
    """Densities of the probabilities of unannotated labels, of several runs together."""
    from pluralis.watch import unannotated

    pairs = [unannotated(one.p, one.given, one.truth) for one in found]
    edges = np.linspace(0, 1, bins + 1)

    def histogram(values: Floats) -> Floats:
        counts = np.histogram(values, edges)[0]
        return counts / max(len(values), 1) * bins

    present, absent = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return Densities(edges, histogram(present), histogram(absent), (len(present), len(absent)))


def class_distances(found: Predictions) -> Floats:
    """[C] Wasserstein distance of unannotated present and absent labels; NaN for a class without one of the two."""
    from pluralis.watch import unannotated, wasserstein

    columns = range(len(found.classes))
    return np.array([wasserstein(*unannotated(found.p[:, c], found.given[:, c], found.truth[:, c])) for c in columns])


def draw_densities(runs: Sequence[Result], of: str = "", part: str = "train", bins: int = 50) -> Figure:
    """Predicted probabilities of labels that nobody wrote down, by whether they are present (Zhou et al., ECCV 2022,
    Figures 2c and 4b).

    Of the class `of`, or of all together; all runs of a row are in its panel.
    """
    bins = whole("figure densities", "bins", bins, low=2, high=1000)
    every, left = each_that_can(
        kept_by_name(runs), lambda group: densities([predictions(run, part).of_class(of) for run in group], bins)
    )
    figure, panels = new_figure(len(every), size=(3.6, 2.8))
    figure.set_label(left)
    highest = 1.0
    rows = "unannotated, training rows" if part == "train" else "test rows"
    for axes, (name, found) in zip(panels, every.items(), strict=True):
        for values, colour, what in ((found.absent, COLOURS[1], "absent"), (found.present, COLOURS[0], "present")):
            axes.stairs(values, found.edges, color=colour, fill=True, alpha=0.25)
            axes.stairs(values, found.edges, color=colour, lw=1.5, label=f"{what}, {rows}")
        present, absent = found.counts
        axes.set_title(f"{shorten(name)}: {present:,} present, {absent:,} absent", fontsize=9)
        axes.set(xlabel="predicted probability", xlim=(0, 1))
        highest = max(highest, found.present.max(), found.absent.max())
    for axes in panels:  # below 1 the scale is linear, above it logarithmic: absent labels crowd together
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(0, 1.3 * highest)
        ticks = [tick for tick in (0, 1, 10, 100, 1000) if tick <= highest]
        axes.set_yticks(ticks, map(str, ticks))
        axes.minorticks_off()
    panels[0].set_ylabel(f"density, {shorten(of, 20) if of else 'all classes'}")
    legend(figure, panels[0], above=True)
    return figure


def draw_distances(runs: Sequence[Result], baseline: str, part: str = "train") -> Figure:
    """How far unannotated present and absent labels are apart: each class is a point, mean over seeds (Zhou et al.,
    ECCV 2022, Figure 4a).
    """
    base: dict[str, Floats] = {}
    others: dict[str, tuple[str, Floats]] = {}
    groups = kept_by_name(runs)
    every, left = each_that_can(
        groups, lambda group: np.mean([class_distances(predictions(run, part)) for run in group], axis=0)
    )
    for name, distances in every.items():
        run = groups[name][0]
        if run.row == baseline:
            base[run.column] = distances
        else:
            others[name] = run.column, distances
    pairs = {name: (base[column], values) for name, (column, values) in others.items() if column in base}
    if not pairs:
        rows = dict.fromkeys(run.row for run in runs)
        raise DataError(f"no kept run can be compared with one of the baseline {baseline!r}: {nearest(baseline, rows)}")
    figure, (axes,) = new_figure(size=(6.4, 4.2))
    figure.set_label(left)
    highest = 1.05 * max(0.01, *(float(np.nanmax(side, initial=0)) for pair in pairs.values() for side in pair))
    axes.plot([0, highest], [0, highest], color=GREY, ls="--", label="equal")
    for (name, (theirs, ours)), look in zip(pairs.items(), looks(pairs).values(), strict=True):
        both = np.isfinite(theirs) & np.isfinite(ours)
        larger = f"{(ours[both] > theirs[both]).mean():.0%}" if both.any() else "none"
        axes.plot(theirs[both], ours[both], label=f"{name}: {larger} of classes above", **{**look, "ls": "none"})
    axes.set(xlabel=f"Wasserstein distance, {shorten(baseline)}", ylabel="Wasserstein distance, other rows")
    axes.set(xlim=(0, highest), ylim=(0, highest))
    legend(figure, axes)
    return figure
