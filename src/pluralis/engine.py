"""The only training loop: every method, loss, head and data set goes through `fit`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from pluralis import distributed
from pluralis.cautions import cautions
from pluralis.checkpoint import Snapshot, Store
from pluralis.data.loader import Loader
from pluralis.errors import DataError, Interrupted, RecipeError
from pluralis.evaluate import Last, Rule, evaluate, predict
from pluralis.finite import FiniteCheck
from pluralis.freed_memory import return_freed_memory
from pluralis.method import Clock, Method
from pluralis.optim import (
    clip_groups,
    create_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from pluralis.runtime import Runtime
from pluralis.seeding import generators_kept, seed_global
from pluralis.stage import Stage
from pluralis.state import EMA, LabelState, Mean
from pluralis.views import Views

Report = Callable[[Clock, int, dict[str, float]], None]
"""Called after every step with (clock, steps in the epoch, {}) and after every epoch with its figures."""
Look = Callable[[Method], dict[str, float]]
"""Figures of the method as it is, for the history."""


@dataclass
class Fit:
    """What training leaves behind; the method itself carries the chosen weights."""

    rule: str
    history: list[dict[str, float]] = field(default_factory=list)
    chosen: int = -1  # index into `history` of the epoch whose weights were chosen
    seconds: float = 0.0  # spent training, over all restarts


@generators_kept()
def fit(
    method: Method,
    data: Loader,
    plan: Stage,
    *,
    store: Store | None = None,
    rule: Rule | None = None,
    watch: Mapping[str, Loader | Look] | None = None,
    seed: int = 0,
    runtime: Runtime | None = None,
    report: Report = lambda clock, steps, figures: None,
    should_stop: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = warnings.warn,
) -> Fit:
    """Train `method` on `data`, from the newest checkpoint in `store` if there is one.

    `rule` chooses the epoch of the last stage whose weights are kept (default: the last); `watch` names further data
    that is evaluated after each epoch, or another way to look at the method, for curves, and has no influence. `warn`
    is told at the start what the plan and the labels leave out (`cautions`).
    Torch's global generators are set by `seed` at every step, and are at the end as they were before.

    >>> from pluralis import Labels, LossMethod, TensorImages, create_loss
    >>> features, labels = torch.eye(4), Labels.from_lists([[0], [1], [0], [1]], ["cat", "dog"])
    >>> data = Loader(TensorImages(features), labels, size=1)
    >>> method = LossMethod(torch.nn.Linear(4, 2), create_loss("an"))
    >>> found = fit(method, data, Stage(epochs=50, batch_size=4, lr=0.1, head_lr=1.0))
    >>> (method.predict(features) > 0).int().argmax(1).tolist(), found.chosen
    ([0, 1, 0, 1], 49)
    """
    _check(method, data, plan)
    _check_rows(method, data)
    learned = method.learned_rows(0)
    plan = plan.for_rows(len(data) if learned is None else len(learned))
    if distributed.rank() == 0:
        for line in cautions(method, data.labels if learned is None else data.labels.select(learned.numpy()), plan):
            warn(line)
    runtime, rule, watch = runtime or Runtime(data.device), rule or Last(), watch or {}
    runtime.place(method)
    run = _Run(method, rule, Fit(rule.describe()))
    snapshot = store.load() if store else None
    clock = run.restore(snapshot) if snapshot else Clock()
    model = None

    def predict_train(views: str | Views = "fast", rows: torch.Tensor | None = None) -> torch.Tensor:
        with runtime.autocast(), run.averaged():  # by the weights that are evaluated
            return predict(method, data, views=views, rows=rows)

    for number, stage in enumerate(method.stages(plan)):
        if number < clock.stage:
            continue
        clock = Clock(number, clock.epoch, clock.step, stage.epochs)
        if (clock.epoch, clock.step) == (0, 0):
            seed_global(seed, "stage", number)
            ended = run.evaluated() if method.joins(number) else None  # before it puts others in their place
            method.start_stage(clock, predict_train)  # which may still ask what the stage before had to say
            run.join(ended)
        # At the very start of a stage a checkpoint still holds the optimizer and the average of the one before.
        run.start_stage(stage, snapshot if (clock.epoch, clock.step) != (0, 0) else None)
        snapshot = None
        model = distributed.wrap(method)
        rows = method.learned_rows(number)
        steps = data.steps(stage.batch_size, rows)
        augment = [name or stage.augment for name in method.views]

        for epoch in range(clock.epoch, stage.epochs):
            clock = Clock(number, epoch, clock.step, stage.epochs)
            if clock.step == 0:
                seed_global(seed, "epoch", number, epoch)
                method.start_epoch(clock, predict_train)
                run.totals.clear()
            method.train()
            for batch in data.batches(stage.batch_size, augment, seed, clock, clock.step, rows):
                # Whatever is drawn inside the step depends on where we are, not on how we got here.
                seed_global(seed, "step", number, epoch, clock.step, distributed.rank())
                set_learning_rate(run.optimizer, stage, clock, steps)
                with runtime.autocast():
                    terms = model(batch, clock)
                loss = torch.stack(list(terms.values())).sum() * batch.weight
                run.check.submit(terms, batch, clock, data, method)
                run.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                if stage.clip:
                    clip_groups(run.optimizer, stage.clip)
                run.optimizer.step()
                distributed.average_batch_norm(method)
                method.after_step(clock)
                if run.ema is not None:
                    run.ema.update()
                run.add(terms, batch.weight)
                clock = Clock(number, epoch, clock.step + 1, stage.epochs)
                report(clock, steps, {})
                # One process's clock decides when to save: all of them take part.
                due = store is not None and distributed.rank() == 0 and store.due(clock.step)
                stop, due = distributed.any_process((should_stop(), due), data.device)
                if store is not None and (stop or due):
                    run.save(store, clock)
                if stop:
                    raise Interrupted(f"stopped at stage {number + 1}, epoch {epoch + 1}, step {clock.step}")

            run.check.flush()
            with runtime.autocast(), run.averaged():
                figures = {"stage": float(number), "epoch": float(epoch + 1), **run.means(steps), **method.figures()}
                figures |= run.choose(method)
                for name, other in watch.items():
                    seen = evaluate(method, other) if isinstance(other, Loader) else other(method)
                    figures |= {f"{name} {key}": value for key, value in seen.items()}
            run.result.history.append(figures)
            last = epoch + 1 == stage.epochs
            clock = Clock(number + last, 0 if last else epoch + 1, 0, stage.epochs)
            # An epoch may take a second, and a save as long: only the end of a stage is always kept.
            due = store is not None and distributed.rank() == 0 and (last or store.due(clock.step))
            if store is not None and distributed.any_process((due,), data.device)[0]:
                run.save(store, clock)
            report(Clock(number, epoch + 1, steps, stage.epochs), steps, figures)
        clock = Clock(number + 1)

    run.finish()
    return_freed_memory()  # that a network on the CPU kept for its next step
    return run.result


def _check_rows(method: Method, data: Loader) -> None:
    """What a method keeps of each training row has a place for every one."""
    states = [len(state.value) for state in method.modules() if isinstance(state, LabelState)]
    for kept in (method.kept_rows, *states):
        if kept not in (0, len(data)):
            raise RecipeError(
                f"fit: the data has {len(data):,} rows, but the method keeps labels of {kept:,}: make it"
                " with the labels of these rows (Setup.labels), and say how many more are images alone"
                " (Setup.further_images)"
            )


def _check(method: object, data: object, plan: object) -> None:
    for what, given, wanted, hint in (
        ("method", method, Method, 'wrap a network: LossMethod(net, create_loss("selection"))'),
        ("data", data, Loader, "put images and labels into one: Loader(TensorImages(images), labels, size=…)"),
        ("plan", plan, Stage, "such as Stage(epochs=10)"),
    ):
        if not isinstance(given, wanted):
            kind = type(given).__name__
            raise RecipeError(f"fit: {what} is an object of {kind}, not a pluralis.{wanted.__name__}; {hint}")


@dataclass
class _Run:
    """All that changes while `fit` runs, apart from the method itself."""

    method: Method
    rule: Rule
    result: Fit
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    best_score: float | None = None
    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    ema: EMA | None = None
    mean: Mean | None = None  # of what stages left that this one joins
    optimizer: torch.optim.Optimizer = field(init=False)
    check: FiniteCheck = field(default_factory=FiniteCheck)
    since: float = field(default_factory=time.monotonic)

    def start_stage(self, stage: Stage, snapshot: Snapshot | None) -> None:
        """Freeze, build the optimizer and the average, and put back what a checkpoint holds of them.

        Only epochs of one stage compete: what an earlier one learned was a means to the last.
        """
        if snapshot is None:
            self.best, self.best_score = {}, None
        for _, net in self.method.networks():
            norms = stage.keep_norms(net.backbone.pretrained)
            net.freeze("all" if stage.freeze < 0 else stage.freeze, batch_norm=norms)
        self.optimizer = create_optimizer(self.method, stage)
        self.ema = EMA(self.method, stage.ema, self.method.memory) if stage.ema else None
        saved = snapshot.tensors if snapshot else {}
        load_optimizer_tensors(self.optimizer, self.method, _part(saved, "optimizer/"))
        if self.ema is not None and (average := _part(saved, "ema/")):
            self.ema.load_state_dict(average)

    def _moving_average(self) -> AbstractContextManager[None]:
        return self.ema.applied() if self.ema is not None else nullcontext()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The method carries the weights that are evaluated inside this block."""
        with self._moving_average(), self.mean.applied(self.method) if self.mean is not None else nullcontext():
            yield

    def evaluated(self) -> dict[str, torch.Tensor]:
        """What the stage that ends leaves, apart from those that it joined."""
        with self._moving_average():
            return self.method.weights()

    def join(self, ended: dict[str, torch.Tensor] | None) -> None:
        """Add what the stage before left to the mean that this one is part of; None to begin without one."""
        if ended is None:
            self.mean = None
            return
        self.mean = self.mean or Mean()
        self.mean.add(ended)

    def add(self, terms: dict[str, torch.Tensor], weight: float) -> None:
        for name, value in terms.items():
            value = value.detach().double() * weight
            self.totals[name] = self.totals[name] + value if name in self.totals else value

    def means(self, steps: int) -> dict[str, float]:
        """Mean of the loss, and of each term where there are several, over the epoch's steps and all processes."""
        parts = steps * distributed.world_size()
        terms = {name: float(value.sum()) / parts for name, value in self.all_totals().items()}
        return {"loss": sum(terms.values()), **(terms if len(terms) > 1 else {})}

    def all_totals(self) -> dict[str, torch.Tensor]:
        """The running sums of every process [world], in an order of names that a restart does not change."""
        return {name: distributed.gather_rows(self.totals[name].reshape(1)) for name in sorted(self.totals)}

    def choose(self, method: Method) -> dict[str, float]:
        """Score the weights as they are, and keep them if they are the best so far."""
        scores = self.rule.score(method)
        score = scores.get("score")
        if score is not None and not math.isfinite(score):
            raise DataError(
                f"the rule '{self.rule.name}' gave the score {score}, so no epoch can be chosen:"
                ' hold out more rows (select.fraction), or set select.rule = "last"'
            )
        if score is None or self.best_score is None or score > self.best_score:
            self.best_score = score
            self.result.chosen = len(self.result.history)
            averages = self.ema is not None or self.mean is not None
            self.best = method.weights() if score is not None or averages else {}
        return scores

    def finish(self) -> None:
        """Leave the chosen weights in the method."""
        self._count_time()
        if self.best:
            self.method.load_state_dict(self.best, strict=False)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.result.seconds += now - self.since
        self.since = now

    def save(self, store: Store, clock: Clock) -> None:
        self.check.flush()
        self._count_time()
        totals = self.all_totals()
        if distributed.rank() != 0:
            return
        parts = {
            "method/": self.method.state_dict(),
            "optimizer/": optimizer_tensors(self.optimizer, self.method),
            "ema/": self.ema.state_dict() if self.ema is not None else {},
            "mean/": self.mean.state_dict() if self.mean is not None else {},
            "best/": self.best,
            "totals/": totals,
        }
        meta = {
            "clock": [clock.stage, clock.epoch, clock.step],
            "history": self.result.history,
            "chosen": self.result.chosen,
            "best_score": self.best_score,
            "seconds": self.result.seconds,
        }
        tensors = {prefix + key: value for prefix, part in parts.items() for key, value in part.items()}
        store.save(f"{clock.stage:03d}-{clock.epoch:07d}-{clock.step:09d}", Snapshot(tensors, meta))

    def restore(self, snapshot: Snapshot) -> Clock:
        self.method.load_state_dict(_part(snapshot.tensors, "method/"))
        if average := _part(snapshot.tensors, "ema/"):  # where a stage begins, that of the one before
            self.ema = EMA(self.method, 0.0, self.method.memory)
            self.ema.load_state_dict(average)
        device = next(self.method.parameters()).device
        if mean := _part(snapshot.tensors, "mean/"):
            self.mean = Mean()
            self.mean.load_state_dict(mean, device)
        self.best = {k: v.to(device) for k, v in _part(snapshot.tensors, "best/").items()}
        mine = distributed.rank()
        for name, sums in _part(snapshot.tensors, "totals/").items():  # one of each process that there was
            same = len(sums) == distributed.world_size()
            self.totals[name] = (sums[mine] if same else sums.sum() * (mine == 0)).to(device)
        self.result.history = list(snapshot.meta["history"])
        self.result.chosen = int(snapshot.meta["chosen"])
        self.best_score = snapshot.meta["best_score"]
        self.result.seconds = float(snapshot.meta["seconds"])
        stage, epoch, step = snapshot.meta["clock"]
        return Clock(stage, epoch, step)


def _part(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
