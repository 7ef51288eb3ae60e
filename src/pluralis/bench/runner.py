"""The queue of a bench: who takes which run next, what became of it, and what is left."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pluralis.bench.perform import Job
from pluralis.bench.plan import Plan, Run
from pluralis.bench.selections import under
from pluralis.bench.store import Result, Store
from pluralis.bench.worker import Answer
from pluralis.bench.workers import Worker
from pluralis.errors import CheckpointError

_POLL = 0.5  # seconds between two looks at what other benches do


@dataclass(frozen=True)
class Failure:
    run: Run
    error: str
    kind: str  # name of the exception


@dataclass
class Running:
    run: Run
    since: float
    epoch: str = ""


@dataclass(frozen=True)
class State:
    """How far a bench is."""

    done: int
    failed: int
    left: int  # not begun, as far as is known
    elsewhere: int  # in the hands of another bench
    running: list[Running]
    seconds: float  # that a run takes on average; NaN where none is finished
    jobs: int

    def expected(self, now: float) -> float:
        """Seconds until all is done."""
        begun = sum(min(now - one.since, self.seconds) for one in self.running)
        return max((self.left + len(self.running)) * self.seconds - begun, 0.0) / max(self.jobs, 1)


@dataclass
class Queue:
    """Runs for workers that share them. All methods may be called from any thread."""

    plan: Plan
    store: Store
    keep: bool
    limit: float = math.inf  # seconds, after which no run is begun
    say: Callable[[str], None] = print
    finished: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    made: int = 0  # by this bench
    stopped: bool = False

    def __post_init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._elsewhere: set[str] = set()
        self._change = threading.Condition()
        self._start = time.monotonic()
        for run in self.runs():
            self._look(run)

    def runs(self) -> list[Run]:
        return self.plan.runs(self.score)

    def score(self, run: Run) -> float | None:
        """What a choice goes by: a run that diverged will do so again, and is the worst of all."""
        if run.key in self.finished:
            return under(self.finished[run.key], run.selection).score
        failure = self.failures.get(run.key)
        return -math.inf if failure is not None and failure.kind == "NonFiniteLoss" else None

    def take(self) -> Run | None:
        """The next run, as soon as there is one; None when there will be none."""
        with self._change:
            while not self.stopped and time.monotonic() - self._start < self.limit:
                left = self._open()
                for run in left:
                    if self.store.is_running(run.key):
                        self._elsewhere.add(run.key)
                        continue
                    self._elsewhere.discard(run.key)
                    if not self._look(run):
                        self._running[run.key] = Running(run, time.monotonic())
                        return run
                if not self._open() and not self._running:
                    return None
                self._change.wait(_POLL)
            return None

    def give_back(self, run: Run, answer: Answer) -> None:
        with self._change:
            self._running.pop(run.key, None)
            outcome = answer["outcome"]
            if outcome == "done" and self._look(run):
                self.made += 1
            elif outcome == "stopped":
                self.stopped = True
            elif outcome != "elsewhere":
                error = answer.get("error", "it ended, but left no result that can be read")
                self.failures[run.key] = Failure(run, error, answer.get("kind", ""))
            self._change.notify_all()

    def heard(self, run: Run, answer: Answer) -> None:
        stage = f"stage {answer['stage'] + 1}, " if answer["stage"] else ""
        with self._change:
            if run.key in self._running:
                self._running[run.key].epoch = f"{stage}epoch {answer['epoch']}/{answer['epochs']}"

    def stop(self) -> None:
        with self._change:
            self.stopped = True
            self._change.notify_all()

    def state(self, jobs: int) -> State:
        with self._change:
            left = {run.key for run in self._open()}
            took = [result.seconds for result in self.finished.values()]
            return State(
                done=len({run.key for run in self.runs()} & self.finished.keys()),
                failed=len(self.failures),
                left=len(left - self._elsewhere),
                elsewhere=len(left & self._elsewhere),
                running=list(self._running.values()),
                seconds=sum(took) / len(took) if took else math.nan,
                jobs=jobs,
            )

    def _open(self) -> list[Run]:
        taken = self.finished.keys() | self.failures.keys() | self._running.keys()
        return [run for run in self.runs() if run.key not in taken]

    def _look(self, run: Run) -> bool:
        """Whether there is a result; one that is damaged is made anew."""
        try:
            found = self.store.read(run)
        except CheckpointError as error:
            self.say(str(error))
            self.store.forget(run.key)
            return False
        if found is None or (self.keep and found.folder is None):
            return False
        self.finished[run.key] = found
        return True


def work_off(queue: Queue, workers: list[Worker], tick: Callable[[State], None], stop: threading.Event) -> None:
    """Let every worker make runs until none is left; `tick` is called again and again meanwhile."""
    broken: list[BaseException] = []

    def serve(worker: Worker) -> None:
        try:
            while (run := queue.take()) is not None:
                job = Job(queue.store.out, run, queue.keep).to_dict()
                queue.give_back(run, worker.perform(job, lambda answer, run=run: queue.heard(run, answer)))  # type: ignore[misc]
        except BaseException as error:
            broken.append(error)
            queue.stop()

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            tick(queue.state(len(workers)))
            threads[0].join(0.1) if threads[0].is_alive() else time.sleep(0.1)
            if stop.is_set() or broken:
                queue.stop()
                for worker in workers:
                    worker.close()
    finally:
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.wait()
    tick(queue.state(len(workers)))
    if broken:
        raise broken[0]
