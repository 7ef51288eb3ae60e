"""What a person sees while a bench runs: a live view in a terminal, a line for each finished run elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from pluralis.bench.runner import Queue, Running, State
from pluralis.console import console, say

Tick = Callable[[State], None]


@contextmanager
def progress(queue: Queue) -> Iterator[Tick]:
    """A call that shows the state, and says what has ended since the last one."""
    ended = _Ended(queue)
    if not console.is_terminal:
        yield ended.say
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def tick(state: State) -> None:
            ended.say(state)
            live.update(Group(Text(summary(state)), *(Text(f"  {_running(one)}") for one in state.running)))

        yield tick


class _Ended:
    """Lines about runs that ended, each once."""

    def __init__(self, queue: Queue) -> None:
        self._queue, self._start = queue, time.monotonic()
        self._known = set(queue.finished)
        self._failed: set[str] = set()

    def say(self, state: State) -> None:
        now = time.monotonic() - self._start
        for metric, run in ((bench.plan.spec.metric, run) for bench in self._queue.benches for run in bench.runs()):
            result = self._queue.finished.get(run.key)
            if result is None or run.key in self._known:
                continue
            self._known.add(run.key)
            if result.failure:
                say(f"{now:6.0f} s  {run.label}: diverged: {result.failure}; {summary(state)}")
                continue
            value = result.test.get(metric)
            figure = "" if value is None else f"{metric} {value:.2f}, "
            say(f"{now:6.0f} s  {run.label}: {figure}{result.seconds:.0f} s of training; {summary(state)}")
        for key, failure in list(self._queue.failures.items()):
            if key not in self._failed:
                self._failed.add(key)
                say(f"{now:6.0f} s  {failure.run.label}: failed: {failure.error}; log: {self._queue.store.log(key)}")


def summary(state: State) -> str:
    """Counts, and the time that is left.

    >>> summary(State(done=3, failed=0, left=4, elsewhere=0, running=[], seconds=30.0, jobs=2))
    '3 done, 0 running, 0 failed, 4 left, about 1 min to go'
    """
    elsewhere = f", {state.elsewhere} made by another bench" if state.elsewhere else ""
    counts = f"{state.done} done, {len(state.running)} running, {state.failed} failed, {state.left} left{elsewhere}"
    expected = state.expected(time.monotonic())
    if math.isnan(expected) or not (state.left or state.running):
        return counts
    return f"{counts}, about {duration(expected)} to go"


def duration(seconds: float) -> str:
    """
    >>> duration(50), duration(600), duration(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _running(one: Running) -> str:
    return f"{one.run.label}  {one.epoch}  {duration(time.monotonic() - one.since)}"
