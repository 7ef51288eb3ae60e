"""What stands in the cells of a table: a mean with its spread, or a difference with what is known of its doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pluralis.bench.statistics import Difference, Summary, holm
from pluralis.bench.table_model import DIGITS, Cell

PARTS = ("difference", "low", "high", "p", "pairs")


@dataclass(frozen=True)
class Compared:
    """Two cells: their difference, the pairs of runs that it is made of, and those that it is to be made of."""

    difference: Difference | None
    pairs: int = 0
    asked: int = 0


def figure_cell(summary: Summary | None, asked: int = 0, digits: int = DIGITS) -> Cell:
    """Mean ± standard deviation, and of how many runs, where more were asked for."""
    if summary is None:
        return Cell()
    few = summary.count < asked
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.{digits}f}"
    note = f" ({summary.count} of {asked})" if few else ""
    numbers = (summary.mean, summary.deviation, summary.count)
    return Cell(f"{summary.mean:.{digits}f}{spread}{note}".replace("-", "−"), numbers=numbers, whole=not few)


def difference_cells(found: list[Compared]) -> list[Cell]:
    """Those of one column, whose p values are corrected together."""
    corrected = iter(holm([p for one in found if one.difference and (p := one.difference.p) is not None]))
    return [_difference(one, corrected) for one in found]


def difference_notes(found: dict[str, list[Compared]]) -> list[str]:
    """What must be said of differences, which are given by the title of their column."""
    notes = []
    each = {title: [one.difference for one in column if one.difference] for title, column in found.items()}
    known = [one for column in each.values() for one in column]
    tests = {title: sum(one.p is not None for one in column) for title, column in each.items()}
    if any(tests.values()):
        notes.append("In brackets: its 95 % confidence interval (Student's t), not corrected for several comparisons.")
        if len(set(tests.values())) == 1:
            number = next(iter(tests.values()))
            said = "1 comparison" if number == 1 else f"{number} comparisons"
            said += " in each column" if len(tests) > 1 else ""
        else:
            said = "the comparisons of each column: " + ", ".join(f"{title} {n}" for title, n in tests.items())
        notes.append(f"p: paired t-test, corrected by Holm's method for {said}.")
        tested = {one.draws for one in known if one.p is not None}
        if max(tested) > 1:
            notes.append("From two draws of the labels on, the means of the draws are compared.")
        if 2 in tested:
            notes.append("Two draws leave one degree of freedom: such intervals are 12.7 standard errors to each side.")
        if min(tested) == 1:
            notes.append("Over one draw of the labels: intervals and p hold for this draw alone.")
    if any(one.p is None and one.count > 1 for one in known):
        notes.append("No spread: all pairs differ by the same.")
    return notes


def _difference(compared: Compared, corrected: Iterator[float]) -> Cell:
    one, few = compared.difference, compared.pairs < compared.asked
    if one is None:
        return Cell()
    counted = f"{compared.pairs} of {compared.asked} pairs"
    if one.low is None or one.high is None or one.p is None:
        why = ["no spread"] if one.count > 1 else [] if few else ["1 pair"]
        said = ", ".join([*why, *([counted] if few else [])])
        return Cell(f"{_signed(one.mean)} ({said})", numbers=(one.mean, None, None, None, one.count), whole=not few)
    p = next(corrected)
    text = f"{_signed(one.mean)} [{_signed(one.low)}, {_signed(one.high)}], {_chance(p)}"
    text += f" ({counted})" if few else ""
    return Cell(text, numbers=(one.mean, one.low, one.high, p, one.count), whole=not few)


def _signed(value: float) -> str:
    return f"{value:+.{DIGITS}f}".replace("-", "−")


def _chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
