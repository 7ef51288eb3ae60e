"""Candidates that are trained one after the other, each a run of its own, within a budget of time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pluralis.checkpoint import write_file
from pluralis.config import Recipe
from pluralis.data.source import Split
from pluralis.errors import CheckpointError, Interrupted, NonFiniteLoss, PluralisError, RecipeError
from pluralis.method import Clock
from pluralis.run import Hooks, train
from pluralis.run_folder import check_data, check_recipe
from pluralis.trained_run import TrainedRun, load_run

FROZEN = "frozen"  # what names of heads alone begin with
COSTS = "costs.json"
_FIRST, _ENOUGH = 5, 25  # steps: the first are slow, and from so many on the pace is known
_SURE = 1.5  # times what is left: then a pace of few steps is proof enough


@dataclass(frozen=True)
class Candidate:
    """One way to train, what is trained to judge it, and how it went."""

    name: str
    final: Recipe  # the run, if it is chosen
    judged: Recipe  # the run that is scored
    score: float | None = None  # of the epoch that counts, on the held-out rows; higher is better
    seconds: float = 0.0  # over all restarts, with decoding
    training: float = 0.0  # of these without decoding
    note: str = ""  # why there is no score

    @property
    def frozen(self) -> bool:
        """Whether it is the head alone, tried beside the recipe: not all can be."""
        return self.name.startswith(FROZEN)

    def counts(self, run: TrainedRun) -> int:
        """Which epoch of the scored run: the one that its rule chose, as the run itself will choose it.

        Of the first stage of another method it is the last, by which that will label the training images.
        """
        return run.chosen if self.judged.method.name == self.final.method.name else -1


@dataclass
class Trials:
    """The candidates so far and what they cost, which the folder knows after a restart."""

    home: Path
    split: Split
    limit: float  # seconds
    hooks: Hooks
    closed: bool = False  # the final run has begun, so nothing may change the choice
    what: str = "tuning"  # that the time is for, in words
    done: list[Candidate] = field(default_factory=list)
    errors: dict[str, PluralisError] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)  # seconds, also of those that are not done
    failures: dict[str, str] = field(default_factory=dict)  # that another attempt would repeat

    def __post_init__(self) -> None:
        if self._file.exists():
            known = json.loads(self._file.read_text())
            self.costs, self.failures = known["seconds"], known["failures"]

    @property
    def _file(self) -> Path:
        return self.home / COSTS

    def attempt(self, candidate: Candidate) -> None:
        """Read what it gave, or train it, or say why not."""
        if any(other.judged == candidate.judged for other in self.done):
            return
        name, where = candidate.name, self.home / candidate.name
        check_recipe(candidate.judged, where)
        check_data(self.split, where)
        need, left = self._need(candidate), self._left()
        if (where / "model.json").exists():
            self._finish(candidate, load_run(where, "cpu"))
        elif name in self.failures:
            self._skip(candidate, f"failed: {self.failures[name]}", NonFiniteLoss(self.failures[name]))
        elif left <= 0:
            self._skip(candidate, f"left out: no time for {self.what} is left")
        elif need > left:
            self._skip(candidate, f"left out: it takes about {_text(need)}, and {_text(left)} for {self.what} are left")
        elif self.closed:
            self._skip(candidate, "left out: the final run has begun")
        else:
            self._train(candidate, left)

    def best(self, among: Iterable[Candidate]) -> Candidate | None:
        names = {candidate.name for candidate in among}
        scored = [c for c in self.done if c.name in names and c.score is not None]
        return max(scored, key=lambda c: -math.inf if c.score is None else c.score, default=None)

    def _train(self, candidate: Candidate, left: float) -> None:
        self.hooks.say(f"{self.what}: {candidate.name}")
        watch = Watch(self.hooks, left)
        try:
            run = train(candidate.judged, self.home / candidate.name, watch.hooks())
        except Interrupted:
            self._pay(candidate, watch.spent())
            if not watch.over():
                raise
            self._skip(candidate, f"stopped: it takes longer than the {_text(left)} that were left for {self.what}")
        except (NonFiniteLoss, CheckpointError, RecipeError) as error:
            if isinstance(error, RecipeError) and not candidate.frozen:  # a mistake; but not all can be frozen
                raise
            if isinstance(error, NonFiniteLoss):  # the same numbers would do it again; the rest can be put right
                self.failures[candidate.name] = str(error)
            self._pay(candidate, watch.spent())
            self._skip(candidate, f"failed: {error}", error)
        else:
            self._pay(candidate, watch.spent())
            self._finish(candidate, run)

    def _finish(self, candidate: Candidate, run: TrainedRun) -> None:
        # A process that was killed could not write what it had spent.
        seconds = max(self.costs.get(candidate.name, 0.0), run.seconds)
        self.costs[candidate.name] = seconds
        score = run.history[candidate.counts(run)]["score"]
        self.done.append(replace(candidate, score=score, seconds=seconds, training=run.seconds))

    def _skip(self, candidate: Candidate, why: str, error: PluralisError | None = None) -> None:
        if error is not None:
            self.errors[candidate.name] = error
        self.hooks.say(f"{candidate.name} {why}")
        self.done.append(replace(candidate, seconds=self.costs.get(candidate.name, 0.0), note=why))

    def _pay(self, candidate: Candidate, seconds: float) -> None:
        self.costs[candidate.name] = self.costs.get(candidate.name, 0.0) + seconds
        write_file(self._file, json.dumps({"seconds": self.costs, "failures": self.failures}, indent=1).encode())

    def _left(self) -> float:
        """Seconds of the budget; no end to them as long as nothing has a result."""
        return self.limit - sum(self.costs.values()) if self.best(self.done) else math.inf

    def _need(self, candidate: Candidate) -> float:
        """Seconds that it will take, by the mean pace of those before it; 0 where that is not known.

        Features are there once a first head has been trained on them.
        """
        alike = [c for c in self.done if c.score is not None and c.frozen == candidate.frozen]
        paces = [(c.training if c.frozen else c.seconds) / c.judged.train.epochs for c in alike]
        whole = sum(paces) / max(len(paces), 1) * candidate.judged.train.epochs
        return max(whole - self.costs.get(candidate.name, 0.0), 0.0)


class Watch:
    """Stops a run when its time is over, or as soon as its pace says that it will not end in time."""

    def __init__(self, hooks: Hooks, left: float) -> None:
        self._hooks, self._left = hooks, left
        self._since = time.monotonic()
        self._steps, self._start, self._whole = 0, (0.0, 0.0), 0.0

    def hooks(self) -> Hooks:
        stop = self._hooks.should_stop
        return replace(self._hooks, report=self._report, should_stop=lambda: stop() or self.over())

    def spent(self) -> float:
        return time.monotonic() - self._since

    def over(self) -> bool:
        return self.spent() > self._left or self._whole > _SURE * self._left

    def _report(self, clock: Clock, steps: int, figures: dict[str, float]) -> None:
        self._hooks.report(clock, steps, figures)
        if figures or clock.stage:  # of later stages there may be more than are known
            return
        self._steps += 1
        now, share = self.spent(), (clock.epoch + clock.step / steps) / clock.epochs
        if self._steps == _FIRST:
            self._start = now, share
        elif self._steps >= _ENOUGH:
            then, before = self._start
            self._whole = now + (now - then) / (share - before) * (1 - share)


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
