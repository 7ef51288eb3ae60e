"""The folders of runs: which can be gone on with, which are whole, and how they go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

import torch

from pluralis.bench.store import Result, Store
from pluralis.checkpoint import Store as Checkpoints
from pluralis.checkpoint import read_snapshot, write_file
from pluralis.config import Recipe
from pluralis.errors import CheckpointError, RecipeError
from pluralis.runtime import Runtime, choose_device

_GONE = ".gone-"  # before a name: what is left of a folder that was being removed
_CODE = ".code"  # the code that trains in the folder
_DEVICE = ".device"  # what it trains on, and how exactly
_KEEP = ".keep"  # there where a bench asked for the folder, finished or not


def begin(folder: Path, recipe: Recipe, code: str, keep: bool) -> None:
    """Say which code trains here and on what, and whether the folder stays, before it does."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / _CODE, code.encode())
    write_file(folder / _DEVICE, _computing(recipe).encode())
    if keep:
        write_file(folder / _KEEP, b"")


def is_kept(folder: Path) -> bool:
    """Whether some bench wants it: perhaps another one than that which is at work now."""
    finished = (folder / "model.json").exists() and not (folder / "checkpoints").exists()
    return finished or (folder / _KEEP).exists()


def can_go_on(folder: Path, recipe: Recipe, code: str) -> bool:
    """Whether the same code trained here, on the same device and from the same weights, and all of it can be read."""
    same = ("device", "precision", "compile", "autotune", "deterministic", "record")
    here = _computing(recipe)  # where there is no such device, the folder stays as it is
    try:
        begun = Recipe.load(folder / "recipe.toml")
        json.loads((folder / "data.json").read_bytes())
        if (folder / _CODE).read_bytes() != code.encode() or begun.model.weights != recipe.model.weights:
            return False
        if (folder / _DEVICE).read_bytes() != here.encode():
            return False
        if (folder / "model.json").exists():
            read_snapshot(folder / "model")
        else:
            Checkpoints(folder / "checkpoints", warn=lambda line: None).load()
    except (OSError, ValueError, RecipeError, CheckpointError):
        return False
    return all(getattr(begun.run, key) == getattr(recipe.run, key) for key in same)


def _computing(recipe: Recipe) -> str:
    """The device and the precision that the recipe's words, such as auto, stand for on this machine."""
    device = choose_device(recipe.run.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{name}, {'bf16' if Runtime(device, recipe.run.precision).bf16 else 'fp32'}"


def is_whole(result: Result, keep: bool) -> bool:
    """Whether nothing is left to do for a result: where the folder is kept, its model must be readable."""
    if result.failure or not keep:
        return True
    if result.folder is None:
        return False
    try:
        read_snapshot(result.folder / "model")
    except CheckpointError:
        return False
    return True


def remove(folder: Path) -> None:
    """Under another name first: a kill in the middle leaves nothing that looks like a run."""
    gone = folder.with_name(_GONE + folder.name)
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def finish(folder: Path, keep: bool) -> None:
    """After the result is stored."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True) if keep else remove(folder)


def tidy(store: Store, finished: Iterable[str], kept: Container[str]) -> None:
    """Make up for processes that were killed before they had removed what nobody needs.

    A folder without a model is not one of them, though there is a result: a run that is made again for its folder goes
    on from its checkpoints.
    """
    done = set(finished)
    for folder in sorted((store.out / "runs").iterdir()):
        key = folder.name.removeprefix(_GONE)
        ended = key in done and all((folder / part).exists() for part in ("model.json", "checkpoints"))
        if key != folder.name or ended:
            with store.lock(key) as mine:
                if mine and key != folder.name:
                    shutil.rmtree(folder, ignore_errors=True)
                elif mine:
                    finish(folder, key in kept or is_kept(folder))
