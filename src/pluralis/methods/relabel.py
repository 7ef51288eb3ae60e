"""Learn from what was written down, work out what is missing, and learn again from all of it."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.evaluate import calibrate
from pluralis.losses import LOSSES, create_loss, selection_posterior
from pluralis.method import Batch, Clock, Method, PredictTrain, Setup
from pluralis.params import choice, number, whole
from pluralis.stage import Stage
from pluralis.state import Kept, LabelState
from pluralis.views import VIEWS

_NAME = "method relabel"


class Relabel(Method):
    """Relabelling: a network learns the written labels and says how likely every other is; a fresh one learns that.

    The first stage trains with `loss`. At the start of each of `rounds` further stages the training images are looked
    at with many `views` (see `pluralis.views`; `crop_weight` is the share of the crops), and every unknown label gets
    its chance r of being present given what was written (`selection_posterior`). Then the network starts anew, from
    its first weights, on

        L = −(1/NC) Σ [ t log p + (1−t) log(1−p) ],   t = 1 on written labels, 0 on verified absent ones, r on the rest.

    Many views see more than the one that was trained on, which is what the second network learns from the first. Where
    the loss is not `selection`, logits are calibrated first, by two numbers under which the written labels are most
    likely. Each stage trains as long as the plan says.

    >>> from pluralis.labels import Labels
    >>> from pluralis.models import create_model
    >>> setup = Setup(lambda: create_model("tiny", 3), 3, Labels.from_lists([[0], [1]], 3))
    >>> method = Relabel(setup, views="fast")
    >>> method.start_stage(Clock(stage=1), lambda views: torch.zeros(2, 3))
    >>> method.soft(torch.tensor([0]))[0]                   # two more may be present: r = 5/14 for each
    tensor([[0.0000, 0.3572, 0.3572]])
    """

    paper = "ours: the likelihood of a pick, and one round of labels from many views"
    start_bias = "log-odds"
    memory = ("soft.", "first.")

    def __init__(
        self,
        setup: Setup,
        loss: str = "selection",
        views: str = "thorough",
        crop_weight: float = 0.25,
        rounds: int = 1,
    ) -> None:
        super().__init__()
        self.calibrated = choice(_NAME, "loss", loss, LOSSES) != "selection"
        looked = VIEWS[choice(_NAME, "views", views, VIEWS)]
        weight = number(_NAME, "crop_weight", crop_weight, low=0.0, high=1.0)
        self.looks = replace(looked, crop_weight=weight) if looked.crop_weight else looked
        self.rounds = whole(_NAME, "rounds", rounds, low=1, high=100)
        self.labels = setup.labels
        self.net = setup.make_net()
        self.loss = create_loss(loss)
        if setup.labels is not None:
            self.loss.start(setup.labels)
        self.batch_coupled = self.loss.batch_coupled
        self.soft = LabelState(setup.rows, setup.classes)
        self.first = Kept(self.net)

    def stages(self, plan: Stage) -> list[Stage]:
        return [plan] * (1 + self.rounds)

    def start_stage(self, clock: Clock, predict_train: PredictTrain) -> None:
        if clock.stage == 0:
            self.first.keep(self.net)
            return
        assert self.labels is not None
        logits, given = predict_train(views=self.looks), torch.from_numpy(self.labels.dense())
        if self.calibrated:
            scale, _ = calibrate(logits, given)
            logits = scale.a * logits + scale.b
        self.soft.fill(selection_posterior(logits, given), given == 0, clock.stage)
        self.first.put_back(self.net)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.net(batch.views[0])
        if clock.stage == 0:
            return {"loss": self.loss(logits, batch.labels, epoch=clock.epoch, epochs=clock.epochs)}
        soft, guessed = self.soft(batch.index)
        target = torch.where(guessed, soft, (batch.labels > 0).to(soft))
        return {"loss": F.binary_cross_entropy_with_logits(logits.float(), target)}

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits
