"""How many labels of each class are written, and how many are there unwritten, in the training data of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import COLOURS, GREY, legend, new_figure, shorten
from pluralis.bench.figures.stored import describe, each_that_can
from pluralis.errors import DataError
from pluralis.params import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelCounts:
    """For each class [C]: present labels that were written, present ones that were not, absent ones that were not."""

    classes: tuple[str, ...]
    written: Counts
    hidden: Counts
    absent: Counts


def label_counts(classes: Sequence[str], given: npt.ArrayLike, truth: npt.ArrayLike) -> LabelCounts:
    """From what training is told and what is true, [N, C] each."""
    given, truth = np.asarray(given), np.asarray(truth)
    unknown = given == 0
    counts = ((given > 0).sum(0), (unknown & (truth > 0)).sum(0), (unknown & (truth < 0)).sum(0))
    return LabelCounts(tuple(classes), *counts)


def run_counts(run: Result) -> tuple[LabelCounts, int]:
    """Of the training rows of a run, and how many these are."""
    from pluralis.config import Recipe
    from pluralis.data.source import load_split

    recipe = Recipe.from_dict(run.recipe)
    split = load_split(recipe.data, recipe.select)
    if split.truth is None:
        raise DataError(f"no label is hidden from {describe(run)}: leave it out with columns = […]")
    labels = split.train.labels
    return label_counts(labels.classes, labels.dense(), split.truth.dense()), len(labels)


def draw_label_counts(runs: Sequence[Result], most: int = 80) -> Figure:
    """Labels of each class, a panel for each column (Chen et al., IJCAI 2024, Figure 4; Zhou et al., 2022, Figure 9).

    Of the first run of a column, as its protocol draws them; the `most` frequent classes.
    """
    most = whole("figure label-counts", "most", most, low=1)
    columns: dict[str, list[Result]] = {}
    for run in runs:
        columns.setdefault(run.column, []).append(run)
    counts, left = each_that_can(columns, lambda group: run_counts(group[0]))
    figure, panels = new_figure(len(counts), columns=1, size=(8.0, 3.0))
    figure.set_label(left)
    for axes, (column, (found, images)) in zip(panels, counts.items(), strict=True):
        order = np.argsort(-(found.written + found.hidden), kind="stable")[:most]
        places = np.arange(len(order))
        axes.bar(places, found.written[order], color=COLOURS[0], label="present, written")
        axes.bar(
            places, found.hidden[order], bottom=found.written[order], color=COLOURS[1], label="present, not written"
        )
        axes.axhline(images, color=GREY, ls="--", label="images")
        axes.set_xticks(places, [shorten(found.classes[c], 18) for c in order], rotation=90, fontsize=8)
        share = found.hidden.sum() / max(found.hidden.sum() + found.absent.sum(), 1)
        title = f"{share:.1%} of the unannotated labels are present"
        axes.set_title(f"{shorten(column)}: {title}" if column else title, fontsize=10)
        axes.set_ylabel("labels")
    legend(figure, panels[0], above=True)
    return figure
