"""Curves over the epochs of training, from the history of each run: mean over seeds, and lowest to highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import legend, looks, new_figure, whole_numbers
from pluralis.bench.figures.stored import by_name
from pluralis.errors import DataError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

_USUAL = ("test mAP", "val mAP", "val nll", "loss")  # what is drawn where nothing is named: the first that all have
_TITLES = {"test mAP": "test mAP, %", "val mAP": "validation mAP, %", "val nll": "−log likelihood of held-out labels"}


@dataclass(frozen=True)
class Curve:
    """One figure of the history by epoch, [E] each; `seeds` is how many runs there are at an epoch."""

    epochs: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.int64]


def curve(runs: Sequence[Result], what: str) -> Curve | None:
    """The curve of runs that differ in nothing but the seed; None where none of them recorded it.

    Epochs are counted through all stages. An epoch at which no run has the figure is left out.
    """
    at: dict[int, list[float]] = {}
    for run in runs:
        for number, entry in enumerate(run.history, 1):
            if entry.get(what) is not None:  # a figure that was not finite is stored as None
                at.setdefault(number, []).append(float(entry[what]))
    return over_runs(at)


def over_runs(at: Mapping[int, Sequence[float]]) -> Curve | None:
    """The curve of the values of several runs at each epoch; None where there are none."""
    if not at:
        return None
    values = [at[epoch] for epoch in sorted(at)]
    mean, low, high = (np.array([fold(v) for v in values], dtype=np.float64) for fold in (np.mean, min, max))
    return Curve(np.array(sorted(at)), mean, low, high, np.array([len(v) for v in values]))


def curves(runs: Sequence[Result], what: str) -> dict[str, Curve]:
    """The curve of each line that has one; an error names what the histories hold."""
    found = {name: curve(group, what) for name, group in by_name(runs).items()}
    there = {name: line for name, line in found.items() if line is not None}
    if not there:
        known = sorted({key for run in runs for entry in run.history for key in entry} - {"stage", "epoch"})
        hint = f": set {need} in the spec" if (need := _setting(what)) else f": {nearest(what, known)}"
        raise DataError(f"no run has {what!r} in its history{hint}")
    return there


def learning_curves(runs: Sequence[Result], what: str | Sequence[str] = "") -> Figure:
    """By epoch: mean over seeds, and lowest to highest.

    `what` is a figure of the history, by default the mAP of the test set, or what else all runs have. Several that are
    named together have a line each.
    """
    names = [what] if isinstance(what, str) and what else list(what)
    if not names:
        every = [set().union(*run.history) if run.history else set() for run in runs]
        names = [next((name for name in _USUAL if all(name in keys for keys in every)), _USUAL[0])]
    if len(names) == 1:
        return draw_curves(curves(runs, names[0]), _TITLES.get(names[0], names[0]))
    short = {name: name.removeprefix("train ") for name in names}
    lines = {f"{row}: {short[name]}": line for name in names for row, line in curves(runs, name).items()}
    kinds = {text.split(" of ")[0] for text in short.values()}  # "p of …" and "p of …" are both p
    return draw_curves(lines, kinds.pop() if len(kinds) == 1 else "")


def positive_loss(runs: Sequence[Result]) -> Figure:
    """Training loss of the labels that were written, by epoch (Zhou et al., ECCV 2022, Figure 2b)."""
    return draw_curves(curves(runs, "train positive loss"), "mean −log p of annotated positives")


def kl_discrepancy(runs: Sequence[Result]) -> Figure:
    """How far apart present and absent labels are, by epoch (PU-MLC, Yuan et al., 2023, Eq. 16 and Figure 5)."""
    return draw_curves(curves(runs, "train KL discrepancy"), "KL discrepancy of present and absent labels")


def wasserstein_by_epoch(runs: Sequence[Result]) -> Figure:
    """Distance of unannotated present and absent labels, by epoch (Chen et al., IJCAI 2024, Figure 3a)."""
    return draw_curves(curves(runs, "train Wasserstein"), "Wasserstein distance")


def draw_curves(found: dict[str, Curve], ylabel: str) -> Figure:
    figure, (axes,) = new_figure()
    for (name, line), look in zip(found.items(), looks(found).values(), strict=True):
        axes.plot(line.epochs, line.mean, label=name, **look)
        axes.fill_between(line.epochs, line.low, line.high, color=look["color"], alpha=0.15, lw=0)
    axes.set(xlabel="epoch", ylabel=ylabel)
    whole_numbers(axes)
    legend(figure, axes)
    return figure


def _setting(what: str) -> str:
    """The setting that makes runs record it, where there is one."""
    return {"train": "run.watch_train = 1000", "test": "run.watch_test = true"}.get(what.partition(" ")[0], "")
