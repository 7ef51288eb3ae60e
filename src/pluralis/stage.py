"""The settings of one stage of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from pluralis.errors import RecipeError

USUAL_EPOCHS, FEWEST_STEPS, MOST_EPOCHS = 10, 600, 100


@dataclass(frozen=True)
class Stage:
    """How one stage trains. A method may turn the user's plan into several of these.

    >>> plan = Stage(epochs=5, lr=1e-3, head_lr=1.0, augment="none")
    >>> plan.epochs, plan.batch_size, plan.schedule
    (5, 32, 'cosine')
    """

    epochs: int = 0  # 0 = by the data, `for_rows`
    batch_size: int = 32
    optimizer: str = "adam"  # adam | adamw | sgd
    lr: float = 1e-4  # of the backbone
    head_lr: float = 10.0  # the head's learning rate, as a multiple of lr
    weight_decay: float = 0.0
    momentum: float = 0.9  # sgd only
    schedule: str = "cosine"  # constant | cosine | one-cycle
    warmup: float = 0.5  # epochs of rising learning rate
    schedule_epochs: int = 0  # length that the schedule is drawn for; 0 = epochs
    clip: float = 0.0  # largest gradient norm of each parameter group; 0 = no clipping
    ema: float = 0.0  # decay of the moving average of the weights; 0 = none
    freeze: int = 0  # stages of the backbone, from the input, that do not train; -1 = the whole backbone
    freeze_bn: bool | None = None  # keep all batch-norm statistics; None = `keep_norms`
    augment: str = "crop"  # none | flip | crop | multi-scale | window | strong | strong-crop | strong-released

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RecipeError(f"train.{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        for name, (low, high) in _RANGES.items():
            value: Any = getattr(self, name)
            whole = name in _WHOLE
            kind: Any = Integral if whole else Real
            if isinstance(value, bool) or not isinstance(value, kind):
                raise RecipeError(f"train.{name} is {value!r}; it must be a {'whole ' * whole}number")
            if not low <= float(value) <= high:
                raise RecipeError(f"train.{name} is {value!r}; it must be from {low:g} to {high:g}")
            if type(value) not in (int, float):  # a number of numpy's, which no recipe could be written with
                object.__setattr__(self, name, int(value) if whole else float(value))
        if not isinstance(self.freeze_bn, bool | None):
            raise RecipeError(f"train.freeze_bn is {self.freeze_bn!r}; it must be true or false, or left out")

    def keep_norms(self, pretrained: bool) -> bool:
        """Whether batch norms keep their statistics: as stated, else if the backbone trains and did so before.

        >>> Stage().keep_norms(True), Stage(freeze_bn=False).keep_norms(True), Stage().keep_norms(False)
        (True, False, False)
        """
        return self.freeze_bn if self.freeze_bn is not None else pretrained and self.freeze >= 0

    def for_rows(self, rows: int, fewest_steps: int = FEWEST_STEPS) -> Stage:
        """The stage with a number of epochs: its own, or one that suits so many rows.

        10, or as many as make `fewest_steps`, but no more than 100. After a few dozen steps a head is still next to
        what it started with, and the probabilities with it.

        >>> Stage().for_rows(5000).epochs, Stage().for_rows(206).epochs, Stage(epochs=3).for_rows(206).epochs
        (10, 86, 3)
        """
        if self.epochs:
            return self
        wanted = math.ceil(fewest_steps / max(1, math.ceil(rows / self.batch_size)))
        return replace(self, epochs=min(max(USUAL_EPOCHS, wanted), MOST_EPOCHS))


_CHOICES = {
    "optimizer": ("adam", "adamw", "sgd"),
    "schedule": ("constant", "cosine", "one-cycle"),
    "augment": ("none", "flip", "crop", "multi-scale", "window", "strong", "strong-crop", "strong-released"),
}
_RANGES: dict[str, tuple[float, float]] = {
    "epochs": (0, 1e6),
    "batch_size": (1, 1e6),
    "lr": (0, 1e3),
    "head_lr": (0, 1e6),
    "weight_decay": (0, 1e3),
    "momentum": (0, 1),
    "warmup": (0, 1e6),
    "schedule_epochs": (0, 1e6),
    "clip": (0, 1e9),
    "ema": (0, 1),
    "freeze": (-1, 1e3),
}
_WHOLE = ("epochs", "batch_size", "schedule_epochs", "freeze")
