"""Settings chosen on the user's own labels: what is tried, in what order, and what is made of it."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

from pluralis.build import make_network
from pluralis.checkpoint import write_file
from pluralis.config import AUTO, Recipe, changed_keys
from pluralis.data.loader import Images
from pluralis.data.source import load_split
from pluralis.defaults import settle
from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.losses import LOSSES
from pluralis.losses.base import parameters
from pluralis.method import Setup
from pluralis.methods import create_method
from pluralis.models import Network
from pluralis.params import number
from pluralis.run import Hooks
from pluralis.run_folder import TUNE, check_folder, has_begun, only_one
from pluralis.stage import Stage
from pluralis.trials import COSTS, FROZEN, Candidate, Trials

HEAD_ALONE = Stage(epochs=15, optimizer="adamw", lr=1e-3, head_lr=1.0, weight_decay=1e-2, freeze=-1, augment="none")
RATES, LENGTHS = (0.3, 3.0), (0.5, 2.0)
_HIGHEST_RATE = 1e3  # that a recipe takes
_NOT_TUNED = "{} holds a run that was not tuned: name a new folder with --out"


@dataclass(frozen=True)
class Tuned:
    """The recipe that was chosen, with nothing left open, and all candidates in the order of their trial."""

    recipe: Recipe
    chosen: str
    candidates: list[Candidate]

    @property
    def measure(self) -> str:
        return "held-out mAP" if self.recipe.select.rule == "clean" else "held-out −log likelihood"

    def figure(self, candidate: Candidate) -> str:
        if candidate.score is None:
            return ""
        return f"{100 * candidate.score:.2f}" if self.recipe.select.rule == "clean" else f"{-candidate.score:.4f}"

    def lines(self) -> list[str]:
        """The table for people."""
        rows = [("", "candidate", self.measure, "seconds", "")]
        for c in self.candidates:
            mark = "*" if c.name == self.chosen else ""
            rows.append((mark, c.name, self.figure(c), f"{c.seconds:.0f}", shorten(c.note, 70, placeholder=" …")))
        wide = max(len(row[1]) for row in rows)
        return [f"{a:1} {b:{wide}}  {c:>{len(self.measure)}}  {d:>7}  {e}".rstrip() for a, b, c, d, e in rows]

    def csv(self) -> str:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["candidate", "backbone", "lr", "epochs", self.measure, "seconds", "chosen", "note"])
        for c in self.candidates:
            plan = c.judged.train
            backbone = "frozen" if plan.freeze < 0 else "trained"
            settings = [c.name, backbone, f"{plan.lr:g}", plan.epochs]
            table.writerow([*settings, self.figure(c), f"{c.seconds:.1f}", int(c.name == self.chosen), c.note])
        return text.getvalue()


def tune(recipe: Recipe, folder: Path, minutes: float = 60.0, hooks: Hooks | None = None) -> Tuned:
    """Choose how to train by the score of held-out rows; `train(tuned.recipe, folder)` is the run itself.

    Tried as runs in `folder`/tune: the head alone on features of the frozen backbone; the recipe as it is; then of each
    of the two 0.3 and 3 times the learning rate, and half and twice the epochs at the best rate. A candidate is not
    started where the pace of those before it says that it would not end within `minutes`, and stopped where its own
    says so; the first one with a result has all the time it needs. The same call goes on where an earlier one stopped.

    Where the method is left open, candidates train `selection`, the first stage of `relabel`, with the head of the
    latter, and of the whole network the last epoch counts, by which `relabel` labels the training images. Nothing that
    is tried learns from the images of held-out rows, which may teach the run itself (`select.images`). Everything else
    is trained as it will be at the end.
    """
    hooks, home = hooks or Hooks(), folder / TUNE
    limit = 60 * number("tune", "minutes", minutes, low=0)
    _check(recipe, folder)
    with only_one(home):
        split = load_split(recipe.data, recipe.select)
        plain, frozen = _candidates(recipe, split.train.images, hooks)
        _check_method(plain.final, split.train.labels)
        write_file(home / "recipe.toml", recipe.to_toml().encode())
        trials = Trials(home, split, limit, hooks, closed=has_begun(folder))
        for start in (frozen, plain):
            trials.attempt(start)
        for start in (frozen, plain):
            _search(trials, start)
        best = trials.best(trials.done)
        if best is None:
            raise trials.errors.get(plain.name) or RecipeError(_NOT_TUNED.format(folder))
        tuned = Tuned(best.final, best.name, trials.done)
        write_file(home / "table.csv", tuned.csv().encode())
        for line in tuned.lines():
            hooks.say(line)
        hooks.say(f"chosen: {best.name}, which is {_in_words(best.final)}; table: {home / 'table.csv'}")
        plain_run = not best.final.run.watch_test and not best.final.select.images
        if plain_run and best.judged == as_judged(best.final) and not has_begun(folder):
            _hand_over(home / best.name, folder, best.final)
    return tuned


def _search(trials: Trials, start: Candidate) -> None:
    """Other learning rates of a candidate that was tried, and other lengths at the best one."""
    if isinstance(trials.errors.get(start.name), RecipeError):
        return  # not all can be frozen
    rates = [start, *(scaled(start, rate=factor) for factor in RATES)]
    for candidate in rates[1:]:
        trials.attempt(candidate)
    base = trials.best(rates)
    if base is not None or start.name not in trials.errors:  # what diverged at every rate does so at any length
        for factor in LENGTHS:
            trials.attempt(scaled(base or start, length=factor))


def _in_words(recipe: Recipe) -> str:
    """What a run trains.

    >>> _in_words(Recipe().with_settings(["method.name=an", "model.head=linear", "train.epochs=3"]))
    'an with the head linear, the whole network: adam, lr 0.0001, head_lr 10, epochs 3'
    """
    plan = recipe.train
    what = "on a frozen backbone" if plan.freeze < 0 else "the whole network"
    what += f" but the first {plan.freeze} stages" * (plan.freeze > 0)
    settings = f"{plan.optimizer}, lr {plan.lr:g}, head_lr {plan.head_lr:g}, epochs {plan.epochs}"
    return f"{recipe.method.name} with the head {recipe.model.head}, {what}: {settings}"


def _check(recipe: Recipe, folder: Path) -> None:
    """Whatever would spoil the tuning, before any work."""
    if recipe.select.rule == "last":
        raise RecipeError(
            'tuning compares scores of held-out rows, and select.rule = "last" gives none: set select.rule ='
            ' "observed" and select.fraction above 0 (such as 0.2), or train without --tune'
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each would go by a clock of its own
        raise RecipeError("tuning runs in one process: start it without torchrun")
    check_folder(folder)
    home = folder / TUNE
    check_folder(home)
    if has_begun(folder) and not home.exists():
        raise RecipeError(_NOT_TUNED.format(folder))
    if not (home / "recipe.toml").exists() or not (changes := changed_keys(Recipe.load(home / "recipe.toml"), recipe)):
        return
    if any(map(has_begun, home.glob("*/"))):
        raise RecipeError(
            f"{home} holds a tuning of another recipe ({'; '.join(changes)}):"
            " use the same settings to go on, or name a new folder with --out"
        )
    (home / COSTS).unlink(missing_ok=True)  # nothing was trained yet: what failed may do better now


def _check_method(recipe: Recipe, labels: Labels) -> None:
    """Build it once: a mistake should not show after candidates, or all of them, are trained."""
    classes = len(labels.classes)

    def make_net() -> Network:
        net = make_network(recipe.model, classes)
        net.freeze("all" if recipe.train.freeze < 0 else recipe.train.freeze)
        return net

    create_method(recipe.method.name, Setup(make_net, classes, labels), recipe.method.params)


def _candidates(recipe: Recipe, images: Images, hooks: Hooks) -> tuple[Candidate, Candidate]:
    """The recipe as it is, and the head alone."""
    final, choices = settle(recipe, images)
    for line in choices:
        hooks.say(line)
    frozen = replace(recipe, train=head_alone(len(images)), run=replace(recipe.run, cache="features"))
    if recipe.method.name == AUTO:  # which will be `selection`
        frozen = replace(frozen, select=replace(frozen.select, images=None))
    head, judged = settle(frozen, images)[0], final
    if recipe.method.name == AUTO:
        head, judged = selection_in(head), selection_in(final)
        if final.method.name != judged.method.name:
            hooks.say(f"candidates train {judged.method.name}, the first stage of {final.method.name}")
    return Candidate(_name(final.train), final, as_judged(judged)), Candidate(FROZEN, head, as_judged(head))


def head_alone(rows: int) -> Stage:
    """How the head alone is trained: for longer where there are few rows, as any stage whose epochs are open."""
    return replace(HEAD_ALONE, epochs=max(HEAD_ALONE.epochs, replace(HEAD_ALONE, epochs=0).for_rows(rows).epochs))


def selection_in(recipe: Recipe) -> Recipe:
    """The recipe with `selection` as its method, and what of the parameters, those of a loss included, that has."""
    known, given = parameters(LOSSES["selection"]), recipe.method.params
    if isinstance(of_loss := given.get("loss_params"), dict):  # anything else is refused where the method is built
        given = {**given, **of_loss}
    params = {key: value for key, value in given.items() if key in known}
    method = replace(recipe.method, name="selection", params=params)
    return replace(recipe, method=method, select=replace(recipe.select, images=None))


def as_judged(recipe: Recipe) -> Recipe:
    """Candidates have nothing to do with the test set, and learn nothing from the images of rows that judge them."""
    data, run = replace(recipe.data, test={}), replace(recipe.run, watch_test=False)
    return replace(recipe, data=data, run=run, select=replace(recipe.select, images=False))


def scaled(base: Candidate, rate: float = 1.0, length: float = 1.0) -> Candidate:
    """The candidate with so many times its learning rate and its epochs."""
    plan = base.final.train
    lr = min(float(f"{plan.lr * rate:.6g}"), _HIGHEST_RATE)
    epochs, drawn = (math.ceil(n * length) for n in (plan.epochs, plan.schedule_epochs))
    plan = replace(plan, lr=lr, epochs=epochs, schedule_epochs=drawn)
    name = f"{FROZEN}-" * base.frozen + _name(plan)
    return Candidate(name, replace(base.final, train=plan), replace(base.judged, train=plan))


def _name(plan: Stage) -> str:
    return f"lr-{plan.lr:g}-epochs-{plan.epochs}"


def _hand_over(done: Path, folder: Path, recipe: Recipe) -> None:
    """Let the final run go on from the end of its candidate: to train the same again would give the same."""
    newest = max((done / "checkpoints").glob("*.json"), default=None)
    if newest is None:
        return
    with only_one(folder):
        (folder / "checkpoints").mkdir(exist_ok=True)
        write_file(folder / "recipe.toml", recipe.to_toml().encode())
        write_file(folder / "data.json", (done / "data.json").read_bytes())
        for part in (newest.with_suffix(".safetensors"), newest):
            write_file(folder / "checkpoints" / part.name, part.read_bytes())
