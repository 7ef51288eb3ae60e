"""How many of the guessed labels are right, by epoch (Zhou et al., ECCV 2022, Tables 4 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pluralis.bench.figures.curves import Curve, draw_curves, over_runs
from pluralis.bench.figures.stored import describe, kept, kept_by_name
from pluralis.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result
    from pluralis.guesses import Table


def guess_tables(run: Result) -> Mapping[str, Table]:
    """The tables that the run wrote beside its model, by what the guesses say: `absent` or `present`."""
    from pluralis.checkpoint import read_snapshot

    path = kept(run) / "guesses"
    if not path.with_suffix(".json").exists():
        raise DataError(f"{describe(run)} guessed no labels: leave it out with rows = […]")
    found: Mapping[str, Table] = read_snapshot(path).meta["guesses by epoch"]
    return found


def accuracy(tables: Sequence[Table]) -> Curve | None:
    """Percent of all guesses up to an epoch that are right, over runs; None where the truth is not known."""
    at: dict[int, list[float]] = {}
    for table in tables:
        for line in table:
            if line["epoch"] is not None and line["accuracy"] is not None:
                at.setdefault(int(line["epoch"]), []).append(100 * line["accuracy"])
    return over_runs(at)


def pseudo_labels(runs: Sequence[Result]) -> Figure:
    """Share of all labels guessed so far that are right, by epoch (Zhou et al., ECCV 2022, Tables 4 and 7)."""
    lines: dict[str, Curve] = {}
    for name, group in kept_by_name(runs).items():
        guessing = [run for run in group if (kept(run) / "guesses.json").exists()]
        tables = [guess_tables(run) for run in guessing]
        for what in sorted({what for one in tables for what in one}):
            found = accuracy([one[what] for one in tables if what in one])
            if found is not None:
                lines[f"{name}: guessed {what}"] = found
    if not lines:
        raise DataError("no kept run guessed labels of which the truth is known: add a row such as em-apl")
    return draw_curves(lines, "guessed labels that are right, %")
