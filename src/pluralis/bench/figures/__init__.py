"""Figures of a bench, by kind: each is drawn from stored runs, and its numbers come from a function of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pluralis.bench.figures.against import known_ratio, sweep
from pluralis.bench.figures.attention import draw_attention
from pluralis.bench.figures.checks import ANY, check_options
from pluralis.bench.figures.class_gain import class_gain
from pluralis.bench.figures.curves import kl_discrepancy, learning_curves, positive_loss, wasserstein_by_epoch
from pluralis.bench.figures.false_negatives import draw_false_negatives
from pluralis.bench.figures.gradients import gradients
from pluralis.bench.figures.label_counts import draw_label_counts
from pluralis.bench.figures.landscape import draw_landscape
from pluralis.bench.figures.pseudo_labels import pseudo_labels
from pluralis.bench.figures.separation import draw_densities, draw_distances
from pluralis.errors import DataError, RecipeError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

KINDS: dict[str, Callable[..., Figure]] = {
    "learning-curves": learning_curves,
    "known-ratio": known_ratio,
    "densities": draw_densities,
    "wasserstein": draw_distances,
    "wasserstein-by-epoch": wasserstein_by_epoch,
    "class-gain": class_gain,
    "gradients": gradients,
    "kl-discrepancy": kl_discrepancy,
    "sweep": sweep,
    "false-negatives": draw_false_negatives,
    "pseudo-labels": pseudo_labels,
    "label-counts": draw_label_counts,
    "landscape": draw_landscape,
    "attention": draw_attention,
    "positive-loss": positive_loss,
}
"""Name of a kind -> function (runs, **options)."""
_WITHOUT_RUNS = ("gradients",)
_HEADING = ("kind", "title", "scales")  # keys of a [[figures]] table that are no options


def draw(kind: str, runs: Sequence[Result], options: Mapping[str, Any] | None = None) -> Figure:
    """The figure of a kind from stored runs; `rows` and `columns` among the options say of which.

    >>> figure = draw("gradients", [], {"losses": ["an", "em"]})
    >>> [axes.get_title() for axes in figure.axes]
    ['annotated positives', 'unannotated labels']
    """
    options = dict(options or {})
    check(kind, options)
    rows, columns = (options.pop(name, None) for name in ANY)
    if rows is not None:
        rows = [*rows, options.get("baseline")]
        runs = [run for run in runs if run.row in rows or run.spec_row in rows]
    if columns is not None:
        runs = [run for run in runs if run.column in columns]
    if not runs and kind not in _WITHOUT_RUNS:
        raise DataError(f"figure {kind}: none of its runs is finished")
    return KINDS[kind](runs, **options)


def options_of(figure: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """The options of a [[figures]] table; a kind that needs a baseline has that of the spec, if it names none.

    >>> options_of({"kind": "class-gain", "title": "Gains", "most": 20}, baseline="an")
    {'baseline': 'an', 'most': 20}
    """
    options = {key: value for key, value in figure.items() if key not in _HEADING}
    known = inspect.signature(KINDS[figure["kind"]]).parameters if figure["kind"] in KINDS else {}
    needed = "baseline" in known and known["baseline"].default is inspect.Parameter.empty
    return {"baseline": baseline, **options} if needed and baseline else options


def check(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse a kind or an option that does not exist, is missing or cannot be, before anything is run."""
    if kind not in KINDS:
        raise RecipeError(f"there is no figure of the kind {kind!r}; {nearest(kind, KINDS)}")
    check_options(kind, KINDS[kind], options)
