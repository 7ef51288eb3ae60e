"""A table before it is written in any format: texts for people, ranks, and the numbers behind them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

DIGITS = 2
BEST, SECOND = "best", "second"


@dataclass(frozen=True)
class Cell:
    """What people read, its rank in the column, and the numbers behind it."""

    text: str = ""
    mark: str = ""  # best | second
    numbers: tuple[float | None, ...] = ()
    whole: bool = True  # one of fewer runs than were asked for takes no part in the ranking
    open: bool = False  # runs are still to come: nothing in its column is ranked yet


@dataclass(frozen=True)
class Head:
    title: str
    parts: tuple[str, ...]  # names of a cell's numbers


@dataclass(frozen=True)
class Line:
    name: str
    cells: list[Cell]
    group: str = ""
    bound: bool = False  # takes no part in the ranking


@dataclass(frozen=True)
class Table:
    title: str
    header: list[Head]
    lines: list[Line]
    notes: list[str] = field(default_factory=list)


def filled(lines: list[Line]) -> list[Line]:
    """Without those that have nothing to say here, such as rows that were only published."""
    return [line for line in lines if any(cell.text for cell in line.cells)]


def ranked(lines: list[Line]) -> list[Line]:
    """The lines with the best and the second best of each column marked; those that read the same share a rank.

    What is best is not known before the runs of all rows are there, apart from those that take no part.
    """
    for place in range(len(lines[0].cells) if lines else 0):
        if any(line.cells[place].open and not line.bound for line in lines):
            continue
        shown = sorted({_rounded(line.cells[place]) for line in lines if _competes(line, place)}, reverse=True)
        if len(shown) < 2:  # nothing is better than something else
            continue
        ranks = dict(zip(shown, (BEST, SECOND), strict=False))
        lines = [
            replace(line, cells=_put(line.cells, place, ranks.get(_rounded(line.cells[place]), "")))
            if _competes(line, place)
            else line
            for line in lines
        ]
    return lines


def _competes(line: Line, place: int) -> bool:
    return not line.bound and bool(line.cells[place].numbers) and line.cells[place].whole


def _rounded(cell: Cell) -> float:
    return round(cell.numbers[0] or 0.0, DIGITS)


def _put(cells: list[Cell], place: int, mark: str) -> list[Cell]:
    return [replace(cell, mark=mark) if at == place else cell for at, cell in enumerate(cells)]
