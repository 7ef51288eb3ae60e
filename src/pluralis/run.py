"""Training: a recipe becomes a folder with checkpoints and, at the end, a model that can be used (`trained_run.py`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pluralis import __version__, distributed
from pluralis.build import make_method
from pluralis.calibration import Calibration, calibrate, rate_given
from pluralis.checkpoint import Snapshot, Store, write_file, write_snapshot
from pluralis.config import AUTO, Recipe
from pluralis.data.loader import Loader, Progress
from pluralis.data.source import Source, Split, load_split
from pluralis.defaults import check_views, frozen, settle
from pluralis.doubts import hardly_tells
from pluralis.engine import Look, Report, fit
from pluralis.errors import RecipeError
from pluralis.evaluate import Clean, Last, Observed, Rule, evaluate, measure, predict
from pluralis.guesses import Table, write_guesses, write_soft_labels
from pluralis.labels import Labels
from pluralis.method import Method
from pluralis.methods.start import start_values
from pluralis.metrics import average_precision
from pluralis.run_folder import check_data, check_folder, check_recipe, only_one
from pluralis.runtime import Runtime, choose_device
from pluralis.trained_run import TrainedRun, feature_cache, feature_loader, load_run, make_loader, trained_run
from pluralis.views import get_views
from pluralis.watch import TrainingRows
from pluralis.watch_rules import EveryRule

_CALIBRATION_ROWS = 500  # held-out rows for two numbers: more would cost time and change little
_FEW_IMAGES = 300  # photographs of which a head alone was the better one with 200, and a whole network with 500
_JUDGED = 2000  # held-out rows by which a run is judged: enough for a mean


@dataclass(frozen=True)
class Hooks:
    """What a caller may watch or ask while a run goes on; `begin` is told of the data and the number of stages."""

    report: Report = lambda clock, steps, figures: None
    decoding: Progress | None = None
    say: Callable[[str], None] = lambda line: None
    should_stop: Callable[[], bool] = lambda: False
    begin: Callable[[Split, int], None] = lambda split, stages: None


def train(recipe: Recipe, folder: Path, hooks: Hooks | None = None, views: Sequence[str] = ()) -> TrainedRun:
    """Train in `folder`, or go on where a run of the same recipe stopped, or return it if it is finished.

    `views` names those beside `fast` whose probabilities are to be calibrated too, on held-out rows at the end.
    Torch's global generators are set by the recipe's seed.

    >>> from tempfile import TemporaryDirectory
    >>> small = {"model.backbone": "tiny", "model.weights": "", "data.size": 16, "train.epochs": 1, "run.workers": 0}
    >>> scenes = {"data.format": "scenes", "data.options": {"split": "train", "count": 32}, "run.device": "cpu"}
    >>> recipe = Recipe.load(None, [], {**scenes, **small, "method.name": "selection"})
    >>> with TemporaryDirectory() as folder:
    ...     run = train(recipe, Path(folder))
    ...     again = load_run(Path(folder))
    >>> len(run.history), again.classes == run.classes
    (1, True)
    """
    hooks = hooks or Hooks()
    views = [name for name in views if get_views(name).passes > 1]
    check_folder(folder)
    with distributed.process_group(choose_device(recipe.run.device)) as device, only_one(folder):
        split = load_split(recipe.data, recipe.select, hooks.say)
        none_named = recipe.method.name == AUTO
        recipe, choices = settle(recipe, split.train.images)
        check_views(recipe)
        check_recipe(recipe, folder)
        check_data(split, folder)
        if (folder / "model.json").exists():
            hooks.say(f"{folder} is finished: nothing to train")
            return load_run(folder, recipe.run.device, resumed=True)
        written = len(split.train.labels)
        further = len(split.held.labels) if split.held and recipe.select.images else 0
        method = make_method(recipe, split.train.labels, further)  # a mistake shows here, before the choices
        for line in choices:
            hooks.say(line)
        if none_named and written < _FEW_IMAGES and recipe.model.weights and not frozen(recipe):
            hooks.say(f"{written} images are few: a head alone (--frozen) may find more in new ones; --tune tries both")
        hooks.begin(split, len(method.stages(recipe.train)))
        if method.batch_coupled and distributed.world_size() > 1:
            hooks.say(f"{recipe.method.name} looks at each batch as a whole: two processes give other numbers than one")
        if distributed.rank() == 0:
            write_file(folder / "recipe.toml", recipe.to_toml().encode())
            identity = {"classes": list(split.train.labels.classes), "fingerprint": split.fingerprint()}
            write_file(folder / "data.json", json.dumps(identity).encode())

        how = recipe.run
        runtime = Runtime(device, how.precision, how.compile, how.autotune, how.deterministic, how.record)
        features = feature_cache(method, recipe, runtime) if how.cache == "features" else None
        if features is not None:
            hooks.say(f"training the head on features of the frozen backbone, kept in {features.folder}")

        def loader(source: Source) -> Loader:
            if features is None:
                return make_loader(source, recipe, device, hooks.decoding, how.cache, hooks.say)
            return feature_loader(source, recipe, features, hooks.decoding)

        looked_at = recipe.select.rule != "last" or how.watch_rules
        data, held = _loaders(split, loader, looked_at, further > 0)
        rule = _rule(recipe, held, method)
        test = loader(split.test) if split.test else None
        watch: dict[str, Loader | Look] = {"test": test} if test and how.watch_test else {}
        if how.watch_train:
            watch["train"] = TrainingRows(data, split.truth, recipe.train.batch_size, how.watch_train, written)
        if how.watch_rules:
            if held is None or split.held_labels is None:
                raise RecipeError("run.watch_rules compares scores of held-out rows: set select.fraction above 0")
            watch["rules"] = EveryRule(held, *split.held_labels, test)
        result = fit(
            method,
            data,
            recipe.train,
            store=Store(folder / "checkpoints", every_seconds=recipe.run.save_seconds, warn=hooks.say),
            rule=rule,
            watch=watch,
            seed=recipe.run.seed,
            runtime=runtime,
            report=hooks.report,
            should_stop=hooks.should_stop,
            warn=hooks.say,
        )
        if method.guessed() and distributed.rank() == 0:
            tables = write_guesses(folder / "guesses", method, split.train.labels, split.truth)
            for what, table in tables.items():
                hooks.say(f"guessed to be {what}: {_summary(table)}; which and when: {folder / 'guesses.json'}")
        if (soft := method.soft_labels()) is not None and distributed.rank() == 0:
            write_soft_labels(folder, soft, split.train.labels)
            hooks.say(
                f"the soft labels that its last stage learned: pluralis relabel {folder} --learned --out FILE.csv"
            )
        method.eval()
        with runtime.autocast():
            chosen = result.history[result.chosen]
            calibration = rule.told(method, chosen) if isinstance(rule, Observed) else Calibration()
        calibrations = {}
        if views and isinstance(rule, Observed) and split.held and features is None:  # features have one view
            few = np.linspace(0, len(split.held.labels) - 1, _CALIBRATION_ROWS).astype(int)
            sample = make_loader(split.held.select(np.unique(few)), recipe, device)
            with runtime.autocast():
                calibrations = _calibrations(method, sample, views, calibration.by, hooks.say)
        with runtime.autocast():
            weak = isinstance(rule, Observed) and held is not None and _hardly_tells(method, held, split.train.labels)
            figures, per_class = _test_figures(method, test, calibration) if test else ({}, {})
        meta = {
            "start_bias": method.start_bias,
            "pluralis": __version__,
            "recipe": recipe.to_dict(),
            "classes": list(split.train.labels.classes),
            "calibration": calibration.to_list(),
            "calibrations": calibrations,
            "rule": result.rule,
            "history": result.history,
            "chosen": result.chosen,
            "test": figures,
            "per class AP": per_class,
            "weak": weak,
            "seconds": result.seconds,
        }
        if distributed.rank() == 0:
            write_snapshot(folder / "model", Snapshot(method.weights(), meta))
        return trained_run(recipe, method, meta)


def _loaders(
    split: Split, loader: Callable[[Source], Loader], looked_at: bool, further: bool
) -> tuple[Loader, Loader | None]:
    """The training rows, with `further` the held-out images after them; and the held-out rows if they are looked at.

    These are then a part of the former, so that no image is decoded twice.
    """
    held = split.held if looked_at else None
    if not further:
        return loader(split.train), loader(held) if held else None
    every = loader(split.with_held_images())
    return every, every.part(len(split.train.labels), held.images, held.labels) if held else None


def _summary(table: Table) -> str:
    total = sum(row["assigned"] or 0 for row in table)
    share = table[-1]["accuracy"] if table else None
    return f"{total:,.0f} labels" + ("" if share is None else f", {share:.1%} of them rightly")


def _test_figures(
    method: Method, test: Loader, calibration: Calibration
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Figures of all classes together, and the average precision of each, None where it cannot be measured."""
    logits, truth = predict(method, test), torch.from_numpy(test.labels.dense())
    figures = measure(logits, truth, calibration)
    for name, member in method.members().items():
        found = evaluate(method, test, calibration, member=member)
        figures |= {f"{name} {key}": found[key] for key in ("mAP", "CF1", "OF1")}
    precision = [None if math.isnan(value) else value for value in (100 * average_precision(logits, truth)).tolist()]
    return figures, dict(zip(test.labels.classes, precision, strict=True))


def _calibrations(
    method: Method, held: Loader, views: Sequence[str], by: str, say: Callable[[str], None]
) -> dict[str, list[Any]]:
    """A calibration for each kind of views: averages over views are less extreme than one, maxima over crops higher.

    All go `by` the likelihood that all held-out rows have shown to be right: a sample may have too few verified ones.
    """
    found, given = {}, torch.from_numpy(held.labels.dense())
    for name in views:
        say(f"calibrating for the views {name} on {len(held)} held-out rows: {get_views(name).cost()}")
        try:
            calibration, _ = calibrate(predict(method, held, views=name), given, rate_given(method), by)
        except RecipeError as error:  # a network for pictures of one size: what was trained is not lost for that
            say(f"not calibrated for the views {name}: {error}")
            continue
        found[name] = calibration.to_list()
    return found


def _hardly_tells(method: Method, held: Loader, trained: Labels) -> bool:
    rows = np.unique(np.linspace(0, len(held) - 1, min(len(held), _JUDGED)).astype(int))
    labels = torch.from_numpy(held.labels.dense(rows))
    logits, often = predict(method, held, rows=torch.from_numpy(rows)), start_values(trained, "log-odds")
    return hardly_tells(logits, labels, often, rate_given(method))


def _rule(recipe: Recipe, held: Loader | None, method: Method) -> Rule:
    if recipe.select.rule == "last" or held is None:
        return Last()
    return Clean(held) if recipe.select.rule == "clean" else Observed(held, method)
