"""Which method and settings suit somebody's own partial labels: a few are trained within a budget and compared."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from pluralis.checkpoint import write_file
from pluralis.config import AUTO, MethodPart, Recipe
from pluralis.data.source import Split, load_split
from pluralis.defaults import settle
from pluralis.errors import DataError, RecipeError
from pluralis.methods import learns_images
from pluralis.params import number
from pluralis.recommend_evidence import LEVEL, Evidence, gain, held_logits
from pluralis.recommend_words import DEFAULT, Compared, Facts, decide
from pluralis.run import Hooks
from pluralis.run_folder import only_one
from pluralis.runtime import choose_device
from pluralis.trained_run import load_run
from pluralis.trials import Candidate, Trials
from pluralis.tune import RATES, as_judged, head_alone, scaled, selection_in

METHODS = ("an", "gr", "em-apl", "pu-mlc")
MASKED = "bce"  # of the known labels alone: where some were verified to be absent
_HELD = 0.2
_BEGUN = "recommend.toml"


@dataclass(frozen=True)
class Recommendation:
    """What to do next, what it rests on, and all that was tried in the order of its trial."""

    recipe: Recipe
    chosen: Compared
    facts: Facts
    file: Path  # where the recipe is
    candidates: list[Candidate]

    @property
    def method(self) -> str:
        return self.recipe.method.name

    @property
    def command(self) -> str:
        words = ["pluralis", "train", "--recipe", str(self.file), "--out", str(self.file.parent / "final")]
        return shlex.join(words)


def recommend(recipe: Recipe, folder: Path, minutes: float = 30.0, hooks: Hooks | None = None) -> Recommendation:
    """Train the default and a handful of others on the recipe's labels, and say which to use.

    On a machine without a GPU, and where the recipe freezes the backbone, heads are trained on its features. Each
    method is trained with plain settings, then each with 0.3 and 3 times the learning rate, the default and the best
    other one first. All are runs in `folder` and within `minutes`, as `tune` has it: the default has all the time it
    needs. The same call goes on where an earlier one stopped. Held-out rows and their written labels decide; no clean
    label does.
    """
    hooks = hooks or Hooks()
    limit = 60 * number("recommend", "minutes", minutes, low=0)
    _check(folder)
    select = replace(recipe.select, rule="observed", fraction=recipe.select.fraction or _HELD)
    plan = replace(recipe, select=select)
    with only_one(folder):
        split = load_split(as_judged(plan).data, select)
        _check_labels(split)
        write_file(folder / _BEGUN, recipe.to_toml().encode())
        frozen = plan.train.freeze < 0 or choose_device(plan.run.device).type == "cpu"
        plain = _candidates(plan, split, frozen, hooks)
        trials = Trials(folder, split, limit, hooks, what="comparing")
        for candidate in plain.values():
            trials.attempt(candidate)
        if trials.best([plain[DEFAULT]]) is None:
            raise trials.errors[DEFAULT]
        tried = {name: [candidate] for name, candidate in plain.items()}
        other = trials.best(candidate for name, candidate in plain.items() if name != DEFAULT)
        for name in dict.fromkeys((DEFAULT, *([other.name] if other else []), *plain)):
            for factor in RATES:
                more = scaled(plain[name], rate=factor)
                tried[name].append(replace(more, name=f"{name}-lr-{more.final.train.lr:g}"))
                trials.attempt(tried[name][-1])
        found = _conclude(trials, tried, split, plan, frozen)
        write_file(found.file, found.recipe.to_toml().encode())
    return found


def _check(folder: Path) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each would go by a clock of its own
        raise RecipeError("recommend runs in one process: start it without torchrun")
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file: name a folder with --out")
    begun = (folder / _BEGUN).exists()
    if folder.exists() and not begun and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise RecipeError(f"{folder} is not empty and holds no comparison: name a new folder with --out")


def _check_labels(split: Split) -> None:
    """Without a written label that is present there is nothing to learn, or nothing to compare by."""
    for source, what in ((split.train, "training"), (split.held, "held-out")):
        if source is None or not source.labels.summary().positives.any():
            rows = 0 if source is None else len(source.labels)
            raise DataError(
                f"none of the {rows} {what} rows has a label that is present, so methods cannot be compared:"
                " write down present labels for more images (as 1 in a table)"
            )


def _candidates(plan: Recipe, split: Split, frozen: bool, hooks: Hooks) -> dict[str, Candidate]:
    """The default first; the others with the head that goes with them."""
    if frozen:
        hooks.say("heads are compared on features of the frozen backbone")
        if not plan.model.weights:
            hooks.say("warning: model.weights is empty, so that these features are random and tell little of methods")
        stage = plan.train
        if stage.freeze >= 0:
            stage = head_alone(len(split.train.labels))
            if plan.train != Recipe().train:
                hooks.say("the recipe's [train] is for a whole network and left out; with train.freeze = -1 it is used")
        plan = replace(plan, train=replace(stage, augment="none"), run=replace(plan.run, cache="features"))
    others = [*METHODS, *([MASKED] if split.train.labels.summary().negatives.any() else [])]
    given = plan.method
    methods = {DEFAULT: given if given.name == AUTO else MethodPart()}
    methods |= {given.name: given} if given.name != AUTO else {}
    found = {}
    for name, method in ({name: MethodPart(name) for name in others} | methods).items():
        own = replace(plan, method=method)
        teachable = not frozen if method.name == AUTO else learns_images(method.name)
        if plan.select.images and not teachable:
            own = replace(own, select=replace(plan.select, images=None))
        final, choices = settle(own, split.train.images)
        trained = selection_in(final) if name == DEFAULT else final
        found[name] = Candidate(name, trained if frozen else final, as_judged(trained))
        for line in choices if name == DEFAULT else ():
            hooks.say(line)
    return {DEFAULT: found.pop(DEFAULT), **found}


def _conclude(
    trials: Trials, tried: dict[str, list[Candidate]], split: Split, plan: Recipe, frozen: bool
) -> Recommendation:
    """Settings within a method by the score of `observed`, which orders them well; methods by intervals."""
    assert split.held is not None
    evidence = Evidence(split.held.labels)
    done = {candidate.name: candidate for candidate in trials.done}
    compared: list[Compared] = []
    level = 1 - (1 - LEVEL) / max(len(tried) - 1, 1)  # Bonferroni's
    for name, candidates in tried.items():
        best = trials.best(candidates)
        if best is None:
            compared.append(Compared(name, done[name]))
            continue
        run = load_run(trials.home / best.name, plan.run.device)
        measured = evidence.measure(held_logits(run, split.held))
        first = compared[0].measured if compared else None
        compared.append(Compared(name, best, measured, gain(measured, first, level) if first else None))
    missing = [c.name for c in trials.done if c.score is None and c.name not in tried]
    ends = [one.name for one in compared if _at_an_end(one.candidate, tried[one.name], done)]
    facts = Facts(compared, evidence.verified, len(evidence.rows), frozen, bool(plan.data.test), missing, ends)
    chosen = decide(facts)
    return Recommendation(chosen.candidate.final, chosen, facts, trials.home / "recommended.toml", trials.done)


def _at_an_end(best: Candidate, tried: list[Candidate], done: dict[str, Candidate]) -> bool:
    """Whether no learning rate beyond the best one was tried."""
    rates = [one.final.train.lr for one in tried if done[one.name].score is not None]
    return len(rates) > 1 and best.final.train.lr in (min(rates), max(rates))
