"""What is shown while a bench runs."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path

import pytest
from rich.console import Console

from pluralis.bench import progress
from pluralis.bench.runner import Running, State
from tests.bench.benches import make_queue, result, write_spec
from tests.bench.test_store import NAMES

SPEC = 'seeds = 2\n[[rows]]\nname = "an"\nmethod = "an"\n[[rows]]\nname = "gr"\nmethod = "gr"\n'


def state(**changes: object) -> State:
    values = {"done": 3, "failed": 1, "left": 4, "elsewhere": 0, "running": [], "seconds": 30.0, "jobs": 2, **changes}
    return State(**values)  # type: ignore[arg-type]


def test_the_time_that_is_left() -> None:
    assert progress.summary(state()) == "3 done, 0 running, 1 failed, 4 left, about 1 min to go"
    assert "1 left, 2 made by another bench, about 15 s" in progress.summary(state(left=1, elsewhere=2))
    assert progress.summary(state(seconds=math.nan)).endswith("4 left")
    assert progress.summary(state(left=0)).endswith("0 left")
    assert progress.duration(7500) == "2.1 h"


def test_a_run_takes_as_long_as_its_worker_is_busy_with_it(tmp_path: Path) -> None:
    queue = make_queue(write_spec(tmp_path, SPEC), tmp_path / "out")
    run = queue.take()
    assert run is not None
    assert math.isnan(queue.state(1).seconds)
    values = {NAMES.get(name, name): value for name, value in vars(result(key=run.key, seconds=1000.0)).items()}
    queue.store.write(run.key, values)  # which says what training took, without what comes before and after
    time.sleep(0.2)
    queue.give_back(run, {"outcome": "done"})
    assert 0.2 <= queue.state(1).seconds < 100
    assert make_queue(tmp_path / "spec.toml", tmp_path / "out").state(1).seconds == 1000  # nothing was made here yet


def test_a_live_view_in_a_terminal_and_lines_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(write_spec(tmp_path, SPEC), tmp_path / "out")
    runs = queue.runs()
    screen = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=screen, force_terminal=True, width=150))
    said: list[str] = []
    monkeypatch.setattr(progress, "say", said.append)
    with progress.progress(queue) as tick:
        queue.finished[runs[0].key] = result("an", 81.25)
        queue.give_back(runs[1], {"outcome": "failed", "error": "too bad"})
        one = Running(runs[2], time.monotonic(), "epoch 2/5")
        tick(queue.state(1))
        tick(state(running=[one]))
    assert "3 done, 1 running, 1 failed, 4 left" in screen.getvalue()
    assert "an · draw 1200 · seed 1  epoch 2/5" in screen.getvalue()
    assert len(said) == 2  # each of them once
    assert "an · draw 1200 · seed 0: mAP 81.25, 3 s of training; 1 done" in said[0]
    assert f"gr · draw 1200 · seed 0: failed: too bad; log: {queue.store.log(runs[1].key)}" in said[1]
