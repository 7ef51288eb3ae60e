"""The folder of a run: it holds one run, of one recipe on one set of data, and one process at a time trains in it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pluralis import distributed
from pluralis.config import Recipe, changed_keys
from pluralis.data.source import Split, check_classes
from pluralis.defaults import filled
from pluralis.errors import CheckpointError, RecipeError

TUNE = "tune"  # the folder, inside of a run's, of the runs that its settings were chosen from


def check_folder(folder: Path) -> None:
    """A run may go into a new folder, an empty one, or one that holds a run or what was tried to tune it."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file: name a folder with --out")
    foreign = folder.exists() and not (folder / "recipe.toml").exists()
    if foreign and any(not p.name.startswith(".") and p.name != TUNE for p in folder.iterdir()):
        raise RecipeError(f"{folder} is not empty and holds no run: name a new folder with --out")


def has_begun(folder: Path) -> bool:
    return (folder / "model.json").exists() or any((folder / "checkpoints").glob("*.json"))


def check_recipe(recipe: Recipe, folder: Path) -> None:
    if not has_begun(folder):
        return  # nothing was trained yet, so nothing is lost by starting with other settings
    changes = changed_keys(filled(Recipe.load(folder / "recipe.toml")), filled(recipe))
    if changes:
        raise RecipeError(
            f"{folder} holds a run of another recipe ({'; '.join(changes)}):"
            " use the same settings to go on, or name a new folder with --out"
        )


def check_data(split: Split, folder: Path) -> None:
    if not has_begun(folder):
        return
    known = json.loads((folder / "data.json").read_text())
    then = f"name a new folder with --out, or put the classes back to go on with the run in {folder}"
    check_classes(split.train.labels, tuple(known["classes"]), "the data set", then)
    if known["fingerprint"] != split.fingerprint():
        raise RecipeError(
            f"the labels or images changed since the run in {folder} was started:"
            " put them back to go on, or name a new folder with --out"
        )


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two processes must not train in one folder; those of one `torchrun` are one."""
    if distributed.rank() != 0:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise RecipeError(f"{folder} cannot be written: {error.strerror}: name another folder with --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another process trains in {folder}: wait for it, or use another --out") from None
        yield
