"""The settings of one stage of training."""

from __future__ import annotations

from dataclasses import dataclass

from pluralis.errors import RecipeError


@dataclass(frozen=True)
class Stage:
    """How one stage trains. A method may turn the user's plan into several of these."""

    epochs: int = 10
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
    freeze_bn: bool = False  # keep all batch-norm statistics as they are
    augment: str = "crop"  # none | flip | crop | multi-scale | window | strong | strong-crop | strong-released

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RecipeError(f"train.{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise RecipeError(f"train.{name} is {getattr(self, name)!r}; it must be from {low:g} to {high:g}")


_CHOICES = {
    "optimizer": ("adam", "adamw", "sgd"),
    "schedule": ("constant", "cosine", "one-cycle"),
    "augment": ("none", "flip", "crop", "multi-scale", "window", "strong", "strong-crop", "strong-released"),
}
_RANGES: dict[str, tuple[float, float]] = {
    "epochs": (1, 1e6),
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
