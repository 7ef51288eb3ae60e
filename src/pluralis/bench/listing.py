"""What `pluralis bench --list` says: every run once, whether it is done, and how many the specs have together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pluralis.bench.runner import Queue
from pluralis.bench.runs import Run


def listing(queue: Queue) -> Iterator[str]:
    """A line for each run, with its key first; then what is not known yet, and sums where there are several specs."""
    runs, benches = queue.runs(), queue.benches
    specs: dict[str, list[str]] = {}
    for run in runs:
        names = specs.setdefault(run.key, [])
        names += [run.spec] if run.spec not in names else []
    for run in _once(runs):
        others = specs[run.key][1:]
        yield f"{run.key}  {_state(queue, run):8}  {run.label}" + (f" (also {', '.join(others)})" if others else "")
    if unchosen := [place for bench in benches for place in bench.unchosen()]:
        yield f"more will follow when settings are chosen: {'; '.join(unchosen)}"
    for bench in benches:
        if bench.plan.without_data:
            name = f"{bench.plan.name}: " if bench.plan.name else ""
            yield f"{name}left out, since no images are named: {', '.join(bench.plan.without_data)}"
    if len(benches) > 1:
        for bench in benches:
            yield f"{bench.plan.name}: {_count(queue, [run for run in runs if run.spec == bench.plan.name])}"
        yield f"together: {_count(queue, runs)}"


def _once(runs: Iterable[Run]) -> list[Run]:
    found: dict[str, Run] = {}
    for run in runs:
        found.setdefault(run.key, run)
    return list(found.values())


def _state(queue: Queue, run: Run) -> str:
    if queue.is_known(run):
        return "diverged" if queue.finished[run.key].failure else "done"
    return "running" if queue.store.is_running(run.key) else "open"


def _count(queue: Queue, runs: Iterable[Run]) -> str:
    """Runs that stand in several places are one."""
    once = _once(runs)
    return f"{len(once)} run{'s' if len(once) != 1 else ''}, {sum(map(queue.is_known, once))} done"
