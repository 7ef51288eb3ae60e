"""Small real data, networks and methods that several tests share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pluralis.data.loader import Loader, TensorImages
from pluralis.data.protocols import single_positive
from pluralis.data.scenes import make_scenes
from pluralis.labels import Labels
from pluralis.losses import create_loss
from pluralis.method import Batch, Clock, LossMethod, Method, PredictTrain
from pluralis.models import create_model
from pluralis.stage import Stage

SIZE = 24


def scenes(count: int = 40, split: str = "train", complete: bool = False) -> Loader:
    """Scenes of digits with one label each, or with all of them."""
    made = make_scenes(split, count)  # type: ignore[arg-type]
    labels = Labels.from_dense(made.truth, made.classes)
    return Loader(TensorImages(made.images), labels if complete else single_positive(labels), size=SIZE)


def loss_method(name: str = "an", seed: int = 0, dropout: float = 0.0) -> LossMethod:
    torch.manual_seed(seed)
    return LossMethod(create_model("tiny", 10, dropout=dropout), create_loss(name))


def plan(**changes: object) -> Stage:
    return Stage(**{"epochs": 2, "batch_size": 8, "lr": 1e-3, "head_lr": 1.0, "warmup": 0.0, **changes})  # type: ignore[arg-type]


def stopped_at(calls: int) -> Callable[[], bool]:
    """A request to stop after so many steps."""
    left = [calls]

    def ask() -> bool:
        left[0] -= 1
        return left[0] < 0

    return ask


class TwoStages(Method):
    """A method with everything that can go wrong at a restart: label state, two stages, a counter, randomness."""

    memory = ("soft", "drawn")

    def __init__(self, rows: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = create_model("tiny", 10, dropout=0.2)
        self.register_buffer("soft", torch.zeros(rows, 10))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.long))
        self.soft: Tensor
        self.drawn: Tensor

    def stages(self, plan: Stage) -> list[Stage]:
        return [plan, Stage(epochs=2, batch_size=10, lr=1e-3, ema=0.8)]

    def start_stage(self, clock: Clock, predict_train: PredictTrain) -> None:
        if clock.stage == 1:
            self.soft.copy_(predict_train().sigmoid())
            nn.init.normal_(self.net.head.get_parameter("fc.weight"), std=0.01)

    def start_epoch(self, clock: Clock, predict_train: PredictTrain) -> None:
        self.soft.mul_(0.5).add_(0.5 * predict_train().sigmoid())

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.net(batch.views[0])
        target = torch.maximum(self.soft[batch.index], (batch.labels > 0).float())
        fit = nn.functional.binary_cross_entropy_with_logits(logits, target)
        return {"fit": fit, "size": 1e-3 * logits.square().mean()}

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def after_step(self, clock: Clock) -> None:
        self.drawn += torch.randint(0, 1000, ())
