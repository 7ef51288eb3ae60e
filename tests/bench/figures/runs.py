"""Stored runs that the tests of figures share: made up where numbers are known, and real ones with their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pluralis.bench.store import Result
from pluralis.config import Recipe
from pluralis.run import train
from pluralis.trained_run import load_run
from tests.bench import benches

TINY = {
    "data.format": "scenes", "data.options": {"count": 60}, "data.protocol": "single-positive", "data.size": 24,
    "data.test": {"options": {"split": "test", "count": 40}}, "model.backbone": "tiny", "model.weights": "",
    "train.epochs": 2, "train.batch_size": 16, "train.lr": 1e-3, "train.augment": "none", "select.rule": "last",
    "select.fraction": 0, "run.device": "cpu", "run.watch_test": True, "run.watch_train": 30,
}  # fmt: skip


def result(row: str = "an", **changes: Any) -> Result:
    """A finished run without a folder."""
    plain: dict[str, Any] = {
        "recipe": {"method": {"name": row}}, "history": [], "test": {}, "per_class_ap": {}, "seconds": 1.5,
        "versions": {"torch": "2"}, "date": "2026-01-02",
    }  # fmt: skip
    return benches.result(row, **{**plain, **changes})


def train_result(folder: Path, row: str, method: str, seed: int = 0, **settings: Any) -> Result:
    """A run that was trained and kept."""
    values = {**TINY, "method.name": method, "run.seed": seed, **{k.replace("__", "."): v for k, v in settings.items()}}
    train(Recipe.load(None, (), values), folder)
    return read_result(folder, row, seed)


def read_result(folder: Path, row: str, seed: int = 0) -> Result:
    run = load_run(folder, "cpu")
    return result(
        row,
        seed=seed,
        recipe=run.recipe.to_dict(),
        classes=list(run.classes),
        history=run.history,
        test=run.test,
        per_class_ap={name: 50.0 + 7 * i + seed for i, name in enumerate(run.classes)},
        folder=folder,
    )
