"""One attempt at a run that ends itself with SIGKILL at a chosen moment. Runs in a child process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

import pluralis.checkpoint
import pluralis.engine
from pluralis.config import Recipe
from pluralis.run import Hooks, train


def attempt(values: dict[str, Any], folder: str, event: str = "", count: int = 0) -> None:
    """Train; die at the `count`-th step, fsync, rename or prediction of the training set; without an event, at none."""
    torch.set_num_threads(1)
    seen = {"step": 0, "fsync": 0, "replace": 0, "labelling": 0}

    def die_at(name: str) -> None:
        seen[name] += 1
        if name == event and seen[name] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    class DyingOs:
        """The `os` that checkpoints are written with: dies just before a sync or a rename takes effect."""

        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)
            if name not in ("fsync", "replace"):
                return real

            def call(*args: Any) -> Any:
                die_at(name)
                return real(*args)

            return call

    real_predict = pluralis.engine.predict

    def dying_predict(*args: Any, **options: Any) -> Any:
        found = real_predict(*args, **options)
        die_at("labelling")
        return found

    pluralis.engine.predict = dying_predict
    pluralis.checkpoint.os = DyingOs()  # type: ignore[attr-defined]
    hooks = Hooks(report=lambda clock, steps, figures: die_at("step"))
    train(Recipe.from_dict(values), Path(folder), hooks)
