"""One spec among those that share a queue: its runs, and what stands in its tables so far."""

from __future__ import annotations

from dataclasses import dataclass

from pluralis.bench.plan import Plan
from pluralis.bench.runs import Run
from pluralis.bench.selections import under
from pluralis.bench.store import Result, placed


@dataclass(frozen=True)
class Failure:
    run: Run
    error: str


@dataclass(frozen=True)
class Bench:
    plan: Plan
    finished: dict[str, Result]  # by key, of all specs of the queue

    def runs(self) -> list[Run]:
        return self.plan.runs(self.score)

    def score(self, run: Run) -> float | None:
        """What a choice goes by."""
        return under(self.finished[run.key], run.selection).score if run.key in self.finished else None

    def results(self) -> list[Result]:
        """What stands in the table, as each run's place there has it; of those that diverged too."""
        shown = [run for run in self.runs() if not run.trial and run.key in self.finished]
        return [under(placed(self.finished[run.key], run), run.selection) for run in shown]

    def diverged(self) -> dict[str, Failure]:
        """Runs of the table that have no figures; what was only tried for a choice is not among them."""
        runs = {run.key: run for run in self.runs() if not run.trial}
        found = {key: self.finished[key].failure for key in runs if key in self.finished}
        return {key: Failure(runs[key], why) for key, why in found.items() if why}

    def unchosen(self) -> list[str]:
        """Rows, in their columns, whose settings are not chosen yet, or cannot be as all of them diverge."""
        chosen = {(run.spec_row, run.column) for run in self.runs() if not run.trial}
        tried = dict.fromkeys((run.spec_row, run.column) for run in self.runs() if run.trial)
        places = [(self.plan.name, *place) for place in tried if place not in chosen]
        return [", ".join(filter(None, place)) for place in places]
