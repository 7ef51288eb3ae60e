"""One run of a bench in this process: train it, or go on with it, measure it, and store the result."""

from __future__ import annotations

import datetime
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pluralis
from pluralis.bench import identity
from pluralis.bench.plan import digits_file
from pluralis.bench.run_folders import begin, can_go_on, finish, is_kept, is_whole, remove
from pluralis.bench.runs import Run
from pluralis.bench.store import Store
from pluralis.checkpoint import read_snapshot, write_file
from pluralis.config import Recipe
from pluralis.data.source import load_split
from pluralis.errors import CheckpointError, NonFiniteLoss
from pluralis.evaluate import evaluate
from pluralis.run import Hooks, train
from pluralis.runtime import Runtime
from pluralis.trained_run import TrainedRun, make_loader

MEASURED = ("mAP", "CF1", "OF1")


@dataclass(frozen=True)
class Job:
    """A run as it travels to another process."""

    out: Path
    run: Run

    def to_dict(self) -> dict[str, Any]:
        run = {**vars(self.run), "recipe": self.run.recipe.to_dict(), "order": list(self.run.order)}
        return {"out": str(self.out), "run": run}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        run = {**values["run"], "recipe": Recipe.from_dict(values["run"]["recipe"])}
        return cls(Path(values["out"]), Run(**{**run, "order": tuple(run["order"])}))


def perform(job: Job, hooks: Hooks | None = None) -> str:
    """Gives "done", also if it diverged, or "elsewhere" if another process has this run; what goes wrong is raised."""
    run, store = job.run, Store(job.out)
    with store.lock(run.key) as mine:
        if not mine:
            return "elsewhere"
        if is_done(store, job):
            return "done"
        if needs_digits(job):
            _make_digits(store)
        folder, code = store.folder(run.key), identity.code_hash()
        keep = run.keep or is_kept(folder)
        if not can_go_on(folder, run.recipe, code):
            remove(folder)
        begin(folder, run.recipe, code, keep)
        try:
            trained = train(run.recipe, folder, hooks, views=run.views)
        except NonFiniteLoss as error:  # it would do so every time: that is what the run gave
            (hooks or Hooks()).say(f"diverged: {error}")
            store.write(
                run.key, {**_origin(run), **_DIVERGED, "recipe": shared_recipe(run.recipe), "failure": str(error)}
            )
            remove(folder)
            return "done"
        store.write(run.key, {**_origin(run), **_figures(run, trained, folder)})
        finish(folder, keep)
    return "done"


def is_done(store: Store, job: Job) -> bool:
    """Whether there is a result that can be trusted, and the model if it is to be kept."""
    try:
        found = store.read(job.run)
    except CheckpointError:
        return False
    return found is not None and is_whole(found, job.run.keep)


def needs_digits(job: Job) -> bool:
    return job.run.recipe.model.weights == str(digits_file(job.out))


def has_digits(store: Store) -> bool:
    """Whether the weights of the embedded scale are there, and whole."""
    path = digits_file(store.out)
    checksum = path.with_suffix(".sha256")
    return path.exists() and checksum.exists() and identity.file_sha256(path) == checksum.read_text()


def _make_digits(store: Store) -> None:
    """The weights of the embedded scale; whoever comes second waits for them, and damaged ones are made anew."""
    from pluralis.demo import DemoSize, pretrain

    path = digits_file(store.out)
    checksum = path.with_suffix(".sha256")
    with store.lock("digits", wait=True):
        if has_digits(store):
            return
        path.unlink(missing_ok=True)
        write_file(checksum, identity.file_sha256(pretrain(store.out, DemoSize())).encode())


def _origin(run: Run) -> dict[str, Any]:
    """What a result says of where it comes from."""
    versions = {"pluralis": pluralis.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "key": run.key,
        "row": run.row,
        "column": run.column,
        "seed": run.seed,
        "draw": run.draw,
        "spec row": run.spec_row,
        "grid": run.grid,
        "data hash": run.data_hash,
        "code version": pluralis.__version__,
        "code hash": identity.code_hash(),
        "versions": {"python": platform.python_version(), **versions},
        "date": datetime.date.today().isoformat(),
    }


def shared_recipe(recipe: Recipe) -> dict[str, Any]:
    """Without where files lie: whoever reads a result, here or elsewhere, says that anew (`store.placed`)."""
    params = dict(recipe.model.head_params)
    if params.get("word_vectors"):
        params["word_vectors"] = Path(params["word_vectors"]).name
    model = replace(recipe.model, weights=Path(recipe.model.weights).name, head_params=params)
    run = replace(recipe.run, features="", decoded="")
    return replace(recipe, data=identity.placeless(recipe.data), model=model, run=run).to_dict()


_DIVERGED: dict[str, Any] = {"classes": [], "history": [], "chosen": 0, "rule": "", "test": {}, "per class AP": {}}
_DIVERGED |= {"seconds": 0.0, "device": ""}


def _figures(run: Run, trained: TrainedRun, folder: Path) -> dict[str, Any]:
    device = next(trained.method.parameters()).device
    return {
        "recipe": shared_recipe(trained.recipe),
        "classes": list(trained.classes),
        "history": trained.history,
        "chosen": trained.chosen,
        "rule": trained.rule,
        "test": {**trained.test, **_by_views(trained, run.views), **_right_guesses(folder)},
        "per class AP": trained.per_class,
        "seconds": trained.seconds,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
    }


def _right_guesses(folder: Path) -> dict[str, float | None]:
    """Per cent of the labels that the method guessed to be absent, or present, that are so."""
    if not (folder / "guesses.json").exists():
        return {}
    tables = read_snapshot(folder / "guesses").meta["guesses by epoch"]
    last = {what: table[-1]["accuracy"] if table else None for what, table in tables.items()}
    return {f"guessed {what} accuracy": None if share is None else 100 * share for what, share in last.items()}


def _by_views(trained: TrainedRun, views: list[str]) -> dict[str, float]:
    """Figures on the test set with other views than `fast`."""
    if not views:
        return {}
    recipe, figures = trained.recipe, dict[str, float]()
    test = load_split(recipe.data, recipe.select).test
    assert test is not None  # the plan refuses recipes without
    device = next(trained.method.parameters()).device
    data = make_loader(test, recipe, device, cache=recipe.run.cache)
    with torch.no_grad(), Runtime(device, recipe.run.precision).autocast():
        for name in views:
            found = evaluate(trained.method, data, trained.calibration_of(name), views=name)
            figures |= {f"{name} {key}": found[key] for key in MEASURED}
    return figures
