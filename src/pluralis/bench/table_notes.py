"""What a reader must know about the numbers of a table: where they come from, what was chosen, what is not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pluralis.bench.runs import Run
    from pluralis.bench.spec import Spec
    from pluralis.bench.store import Result


def origin_notes(spec: Spec, settings: Sequence[str], results: list[Result]) -> list[str]:
    """What is repeated, how, and with which seeds, draws and rules; `settings` lie over those of the spec."""
    notes = [spec.about] if spec.about else []
    if spec.scale_name != "full":
        notes.append(f"Scale: {spec.scale_name}.")
    if settings:
        notes.append(settings_note(settings))
    bounds = [row.name for row in spec.rows if row.bound]
    aside = f"; left aside: {', '.join(bounds)}" if bounds else ""
    notes.append(f"Ours: mean ± standard deviation over runs. Best in bold, second best underlined{aside}.")
    if results:
        seeds, draws = (sorted({getattr(r, name) for r in results}) for name in ("seed", "draw"))
        nets = _unique(results, lambda r: f"{r.recipe['model']['backbone']}, {r.recipe['data']['size']} px")
        notes.append(f"Seeds {_list(seeds)}; draws of the labels {_list(draws)}; {'; '.join(nets)}.")
        notes.append(f"Weights chosen by: {'; '.join(_unique(results, lambda r: r.rule))}.")
    for row in spec.rows:
        if row.grid and row.choose == "validation":
            mine = [r for r in results if r.spec_row == row.name]
            notes += [f"{row.name}: {text}." for text in _unique(mine, _choice)]
    return notes


def code_notes(results: Iterable[Result]) -> list[str]:
    """Whether different code of one version made the runs of a table: they may differ by it."""
    made = Counter({result.key: result.code_hash for result in results}.values())
    if len(made) < 2:
        return []
    each = ", ".join(f"{code} ({count})" for code, count in sorted(made.items(), key=lambda one: (-one[1], one[0])))
    return [f"Made by different code of the same version: {each} of the runs. `--redo` makes those of other code anew."]


def settings_note(settings: Sequence[str]) -> str:
    return f"Set over the spec, whatever else is said here: {', '.join(settings)}."


def missing_notes(
    runs: list[Run], finished: list[Result], failed: Collection[str], without_data: Sequence[str]
) -> list[str]:
    """How many runs are not there yet, and which will not be there as they failed, diverged or have no data."""
    asked, there = {run.key for run in runs if not run.trial}, {result.key for result in finished}
    notes = []
    if asked - there:
        notes.append(
            f"Not complete: {len(asked & there)} of {len(asked)} runs are there. Nothing is marked in a column before"
            " all its rows are whole."
        )
    lost = Counter(_place(r.row, r.column) for r in finished if r.failure)
    notes += [f"{place}: {count} of the runs diverged." for place, count in lost.items()]
    broken = Counter(_place(run.row, run.column) for run in runs if run.key in failed)
    notes += [f"{place}: {count} of the runs failed; the same command tries again." for place, count in broken.items()]
    if without_data:
        notes.append(f"Not run, since no images were named: {', '.join(without_data)}.")
    return notes


def _choice(result: Result) -> str:
    values = ", ".join(f"{key} = {value}" for key, value in result.grid.items())
    if result.selection == "last":  # beside other rules: it looks at no score
        return f"{values} ({result.column}: middle of each list, nothing chosen)"
    return f"chosen by the score of held-out rows: {values}" + (f" ({result.column})" if result.column else "")


def _place(row: str, column: str) -> str:
    return ", ".join(filter(None, (row, column)))


def _unique(results: list[Result], text: Callable[[Result], str]) -> list[str]:
    return list(dict.fromkeys(text(result) for result in results))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
