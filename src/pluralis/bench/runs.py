"""One run of a bench: what is trained, and where it stands in the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pluralis.bench.names import line_name, shown_name
from pluralis.config import Recipe


@dataclass(frozen=True)
class Run:
    """One training, and the place of its figures in the table."""

    key: str
    row: str  # line of the table
    spec_row: str  # row of the spec
    column: str
    seed: int
    draw: int
    grid: dict[str, Any]
    recipe: Recipe
    views: list[str]
    data_hash: str
    trial: bool = False  # made for a choice alone, so far
    order: tuple[int, ...] = ()
    selection: str = ""  # the rule under which it stands here, where the spec has several
    keep: bool = False  # its folder, which figures need: another bench may have made it without
    spec: str = ""  # its name, where several share a queue

    @property
    def label(self) -> str:
        column = "" if self.column == self.selection else self.column.removesuffix(f", {self.selection}")
        parts = (self.spec, line_name(self.spec_row, self.grid), column, f"draw {self.draw}", f"seed {self.seed}")
        return " · ".join(filter(None, parts))


def at_rule(run: Run, selection: str) -> Run:
    """The run as it stands in the column of a selection rule."""
    return replace(run, column=shown_name(run.column, selection), selection=selection) if selection else run
