"""Which share of the unannotated labels is present, by predicted probability (Chen et al., IJCAI 2024, Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import COLOURS, GREY, legend, new_figure, shorten
from pluralis.bench.figures.predicted import Predictions, predictions
from pluralis.bench.figures.stored import each_that_can, kept_by_name
from pluralis.params import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

Floats = npt.NDArray[np.float64]
_WEAK = 1e6  # strength of what is fitted against its prior, so weak that it is not felt where there is data


@dataclass(frozen=True)
class FalseNegatives:
    """FN/(FN+TN) of the bins that hold a label, [B], and what k̂(p) should be."""

    p: Floats  # mean probability of a bin
    ratio: Floats
    labels: npt.NDArray[np.int64]  # FN + TN
    written: float  # a = P(s = 1 | y = 1), the share of present labels that were written; NaN without any
    w: float  # of k̂ = σ(w·p + b), Eq. 7, fitted to the bins; NaN where all or none of the labels are present
    b: float

    def exact(self, p: Floats) -> Floats:
        """k = (1 − a)p / (1 − ap), Eq. 6: what k̂ should be where p is right and labels are written at random."""
        return np.asarray((1 - self.written) * p / (1 - self.written * p))

    def fitted(self, p: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-(self.w * p + self.b))))


def false_negatives(found: Sequence[Predictions], bins: int = 100) -> FalseNegatives:
    """From the predictions of several runs together."""
    from pluralis.watch import unannotated

    pairs = [unannotated(one.p, one.given, one.truth) for one in found]
    present, absent = (np.concatenate(side) for side in zip(*pairs, strict=True))
    every = np.concatenate([present, absent])
    edges = np.linspace(0, 1, bins + 1)
    total, hidden = np.histogram(every, edges)[0], np.histogram(present, edges)[0]
    mean = np.histogram(every, edges, weights=every)[0][total > 0] / total[total > 0]
    hidden, total = hidden[total > 0], total[total > 0]
    positives = sum(int((one.truth > 0).sum()) for one in found)
    written = 1 - len(present) / positives if positives else np.nan
    return FalseNegatives(mean, hidden / total, total, written, *_logistic(mean, hidden, total - hidden))


def _logistic(p: Floats, present: npt.NDArray[np.int64], absent: npt.NDArray[np.int64]) -> tuple[float, float]:
    """w and b under which the bins' counts are most likely."""
    from sklearn.linear_model import LogisticRegression

    if not present.sum() or not absent.sum():
        return np.nan, np.nan
    x, y = np.concatenate([p, p])[:, None], np.repeat([1, 0], len(p))
    fit = LogisticRegression(C=_WEAK, max_iter=1000, tol=1e-8).fit(x, y, np.concatenate([present, absent]))
    return float(fit.coef_[0, 0]), float(fit.intercept_[0])


def draw_false_negatives(runs: Sequence[Result], of: str = "", part: str = "train", bins: int = 100) -> Figure:
    """Share of the unannotated labels that are present, by predicted probability, with Eq. 6 for the true share a of
    written labels, and the logistic k̂ of Eq. 7 fitted to the bins (Chen et al., IJCAI 2024, Figure 5).

    A larger dot is a bin with more labels; of the class `of`, or of all together.
    """
    bins = whole("figure false-negatives", "bins", bins, low=2, high=10_000)
    every, left = each_that_can(
        kept_by_name(runs), lambda group: false_negatives([predictions(run, part).of_class(of) for run in group], bins)
    )
    figure, panels = new_figure(len(every), size=(3.6, 3.0))
    figure.set_label(left)
    grid = np.linspace(0, 1, 201)
    for axes, (name, found) in zip(panels, every.items(), strict=True):
        sizes = 6 + 60 * found.labels / max(found.labels.max(initial=1), 1)
        axes.scatter(found.p, found.ratio, s=sizes, color=COLOURS[0], alpha=0.6, lw=0, label="FN/(FN+TN) of a bin")
        if found.written > 0:  # nothing was written for test rows
            axes.plot(grid, found.exact(grid), color=GREY, ls="--", label="(1−a)p/(1−ap)")
        if np.isfinite(found.w):
            axes.plot(grid, found.fitted(grid), color=COLOURS[1], label="k̂(p), fitted")
        says = f"a = {found.written:.2f}, w = {found.w:.1f}, b = {found.b:.1f}"
        axes.set_title(f"{shorten(name)}\n{says}", fontsize=9)
        axes.set(xlabel="predicted probability", xlim=(0, 1), ylim=(-0.03, 1.03))
    panels[0].set_ylabel("share of unannotated labels\nthat are present")
    fullest = max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[1]))
    legend(figure, fullest, above=True)
    return figure
