"""What a demo measured: runs by method, and the rows, the headline and the table that follow from them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pluralis.errors import DataError

if TYPE_CHECKING:  # rich and torch are slow to import and not needed to describe results
    from rich.table import Table
    from torch import Tensor

MEASURES = ("mAP", "CF1", "OF1")


@dataclass(frozen=True)
class RunCurve:
    """One training run. `epochs` hold "epoch", "loss", "mAP"; `final` holds the measures; all in per cent."""

    seed: int
    epochs: list[dict[str, float]]
    final: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class MethodRuns:
    """All the runs of one method: `name` is its key, `title` what readers see."""

    name: str
    title: str
    runs: list[RunCurve]


@dataclass(frozen=True)
class GalleryItem:
    """A test image `[3, H, W]` uint8, the one label an annotator gave, the truth, and predictions by method."""

    image: Tensor
    given: str | None
    truth: list[str]
    predictions: dict[str, list[str]]


@dataclass(frozen=True)
class DemoResults:
    """Everything that the report shows. `upper` names the fully supervised method, the ceiling of the others."""

    title: str
    methods: list[MethodRuns]
    upper: str
    gallery: list[GalleryItem]
    selection_rule: str
    command: str
    notes: list[str]
    device: str
    versions: dict[str, str]
    threshold_rule: str = "probability of at least 0.5, for every class"


@dataclass(frozen=True)
class Row:
    """The numbers of one line of the table. A spread of NaN means that there was only one run."""

    method: MethodRuns
    mean: dict[str, float]
    spread: dict[str, float]
    seconds: float
    gain: float  # mAP against the first method
    best: frozenset[str]  # measures in which no other method is better, the upper bound left aside
    upper: bool


def rows(results: DemoResults) -> list[Row]:
    """The numbers of the table, in the order of the methods."""
    for method in results.methods:
        if not method.runs:
            raise DataError(f"method {method.name!r} has no runs to report: leave it out or run it first")
    if not results.methods:
        raise DataError("a report needs the runs of at least one method, and got none")
    means = {m.name: {k: statistics.fmean(r.final[k] for r in m.runs) for k in MEASURES} for m in results.methods}
    rivals = [m.name for m in results.methods if m.name != results.upper]
    first = means[(rivals or [results.upper])[0]]["mAP"]
    return [
        Row(
            method=m,
            mean=means[m.name],
            spread={k: _spread([r.final[k] for r in m.runs]) for k in MEASURES},
            seconds=statistics.fmean(r.seconds for r in m.runs),
            gain=means[m.name]["mAP"] - first,
            best=frozenset(
                k for k in MEASURES if m.name in rivals and means[m.name][k] >= max(means[n][k] for n in rivals)
            ),
            upper=m.name == results.upper,
        )
        for m in results.methods
    ]


def headline(results: DemoResults) -> str:
    """One sentence that says what the numbers say, whichever way they came out."""
    table = rows(results)
    rivals = [row for row in table if not row.upper] or table
    first, best = rivals[0], max(rivals, key=lambda row: row.mean["mAP"])
    text = f"{best.method.title} reaches {best.mean['mAP']:.1f} mAP"
    if best is first and len(rivals) > 1:
        text = f"No method does better than {first.method.title}, which reaches {first.mean['mAP']:.1f} mAP"
    elif best is not first:
        text += f", {best.gain:.1f} points above {first.method.title} ({first.mean['mAP']:.1f})"
    for row in table:
        if row.upper and row is not best:
            text += f"; the upper bound, {row.method.title}, reaches {row.mean['mAP']:.1f}"
            gap = row.mean["mAP"] - first.mean["mAP"]
            if gap > 0 and best.gain > 0:
                text += f", so {100 * best.gain / gap:.0f} % of the gap is closed"
    seeds = sorted({len(row.method.runs) for row in table})
    return f"{text} (means over {' or '.join(map(str, seeds))} {'seed' if seeds == [1] else 'seeds'})."


def summary_table(results: DemoResults) -> Table:
    """The table of the report, for the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(results.title), caption=Text(headline(results)))
    for name in ("method", *MEASURES, "Δ mAP", "s / run"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows(results):
        cells = [cell(row, k) + (" ★" if k in row.best else "") for k in MEASURES]
        # Text, not str: square brackets in a title are no markup.
        table.add_row(*map(Text, (row.method.title, *cells, gain(row), f"{row.seconds:.1f}")))
    return table


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def cell(row: Row, measure: str) -> str:
    spread = row.spread[measure]
    return f"{row.mean[measure]:.1f}" + ("" if math.isnan(spread) else f" ± {spread:.1f}")


def gain(row: Row) -> str:
    return f"{row.gain:+.1f}".replace("-", "−")
