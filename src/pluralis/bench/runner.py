"""The queue of a bench: who takes which run next, what became of it, and what is left."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pluralis.bench.bench import Bench, Failure
from pluralis.bench.perform import Job
from pluralis.bench.plan import Plan
from pluralis.bench.run_folders import is_whole, remove
from pluralis.bench.runs import Run
from pluralis.bench.store import Result, Store
from pluralis.bench.worker import Answer
from pluralis.bench.workers import Worker
from pluralis.errors import CheckpointError

_POLL = 0.5  # seconds between two looks at what other benches do


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
    """Runs of one or more specs, for workers that share them. All methods may be called from any thread."""

    plans: list[Plan]
    store: Store
    limit: float = math.inf  # seconds, after which no run is begun
    say: Callable[[str], None] = print
    stop_after: float = math.inf  # seconds, after which what runs is saved
    begun: float = field(default_factory=time.monotonic)  # where these seconds begin
    only_look: bool = False  # change nothing, not even what is damaged
    finished: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    made: int = 0  # by this bench
    stopped: bool = False

    def __post_init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._elsewhere: set[str] = set()
        self._change = threading.Condition()
        self._took: list[float] = []  # seconds of the runs that were made here, from taking them to having the result
        self.benches = [Bench(plan, self.finished) for plan in self.plans]
        seen: set[str] = set()
        while new := [run for run in self.runs() if run.key not in seen]:  # what is found may decide what follows
            seen |= {run.key for run in new}
            for run in new:
                self._look(run)

    def runs(self) -> list[Run]:
        """The first seed and draw of all specs before the next: half of the runs are whole seeds of every table.

        A folder that one spec needs is kept for all.
        """
        found = [run for bench in self.benches for run in bench.runs()]
        found.sort(key=lambda run: run.order[:2])  # what is alike stays in the order of the specs and their rows
        kept = {run.key for run in found if run.keep}
        return [replace(run, keep=True) if run.key in kept and not run.keep else run for run in found]

    def diverged(self) -> dict[str, Failure]:
        """Runs of any table that have no figures."""
        return {key: failure for bench in self.benches for key, failure in bench.diverged().items()}

    def take(self) -> Run | None:
        """The next run, as soon as there is one; None when there will be none."""
        with self._change:
            while not self.stopped and time.monotonic() - self.begun < min(self.limit, self.stop_after):
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
            taken = self._running.pop(run.key, None)
            outcome = answer["outcome"]
            if outcome == "done" and self._look(run):
                self.made += 1
                self._took += [time.monotonic() - taken.since] if taken and not self.finished[run.key].failure else []
            elif outcome == "stopped":
                self.stopped = True
            elif outcome not in ("elsewhere", "again"):
                error = answer.get("error", "it ended, but left no result that can be read")
                self.failures[run.key] = Failure(run, error)
            self._change.notify_all()

    def heard(self, run: Run, answer: Answer) -> None:
        stage = f"stage {answer['stage'] + 1}, " if answer["stage"] else ""
        with self._change:
            if run.key in self._running:
                self._running[run.key].epoch = f"{stage}epoch {answer['epoch']}/{answer['epochs']}"

    def is_over(self) -> bool:
        """Whether it is time to save what runs."""
        return time.monotonic() - self.begun >= self.stop_after

    def stop(self) -> None:
        with self._change:
            self.stopped = True
            self._change.notify_all()

    def state(self, jobs: int) -> State:
        with self._change:
            left, failed = {run.key for run in self._open()}, self.failures.keys() | self.diverged().keys()
            undone = left | failed | self._running.keys()  # some have a result: they are made again for their folder
            took = self._took or [result.seconds for result in self.finished.values() if not result.failure]
            return State(
                done=len(({run.key for run in self.runs()} & self.finished.keys()) - undone),
                failed=len(failed),
                left=len(left - self._elsewhere),
                elsewhere=len(left & self._elsewhere),
                running=list(self._running.values()),
                seconds=sum(took) / len(took) if took else math.nan,
                jobs=jobs,
            )

    def redo(self, run: Run, code: str) -> None:
        """Forget a result that other code made, and the folder of its run, if no other bench has made it anew."""
        with self.store.lock(run.key) as mine:
            if mine and self._look(run) and self.finished[run.key].code_hash == code:
                return
            if mine:
                self.store.forget(run.key)
                remove(self.store.folder(run.key))
            del self.finished[run.key]

    def _open(self) -> list[Run]:
        taken = self.failures.keys() | self._running.keys()
        return [run for run in self.runs() if run.key not in taken and not self.is_known(run)]

    def is_known(self, run: Run) -> bool:
        """What was made for another spec may lack the folder that this one needs, when a choice asks for it late.

        That the model can be read too is seen once, when the result is (`is_whole`): this is asked many times a second.
        """
        found = self.finished.get(run.key)
        return found is not None and bool(found.folder or found.failure or not run.keep)

    def _look(self, run: Run) -> bool:
        """Whether there is a result; one that is damaged is made anew."""
        try:
            found = self.store.read(run)
        except CheckpointError as error:
            if not self.only_look:
                return self._look_again(run)
            self.say(str(error))
            return False
        if found is None or not is_whole(found, run.keep):
            return False
        self.finished[run.key] = found
        return True

    def _look_again(self, run: Run) -> bool:
        """At a result that could not be read, when nobody else can touch it."""
        with self.store.lock(run.key) as mine:
            if not mine:
                return False
            try:
                self.store.read(run)
            except CheckpointError as error:
                self.say(str(error))
                self.store.forget(run.key)
                return False
        return self._look(run)


def work_off(queue: Queue, workers: list[Worker], tick: Callable[[State], None], stop: threading.Event) -> None:
    """Let every worker make runs until none is left; `tick` is called again and again meanwhile."""
    broken: list[BaseException] = []

    def serve(worker: Worker) -> None:
        try:
            while (run := queue.take()) is not None:
                job = Job(queue.store.out, run).to_dict()
                answer = worker.perform(job, lambda heard, run=run: queue.heard(run, heard))  # type: ignore[misc]
                queue.give_back(run, answer)
                if answer["outcome"] == "again":
                    time.sleep(_POLL)  # those that are free come first
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
            if stop.is_set() or queue.is_over() or broken:
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
