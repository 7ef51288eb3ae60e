"""Regularised online label estimation: the labels of the training set are parameters, learned with the network."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pluralis.labels import Labels
from pluralis.losses import functional
from pluralis.method import Batch, Clock, Method, Setup
from pluralis.params import number, whole
from pluralis.stage import Stage

_UNKNOWN, _PRESENT, _ABSENT = 0.6, 0.995, 0.005


class Role(Method):
    """ROLE: the network f and a table of label estimates g = σ(φ), φ [N, C], teach each other.

        L = ½ [ K(f) + K(g) ] + ½ [ CE(f; g) + CE(g; f) ] + ½ [ R(f) + R(g) ]

    K(f) = −(1/NC) [Σ_{y=1} log f + Σ_{y=−1} log(1−f)] for the known labels, CE(f; g) = −(1/NC) Σ [g log f +
    (1−g) log(1−f)] with g held constant, and R(f) = ((Σ_c mean_n f_nc − k)/C)², which holds the number of labels an
    image at k. Cole et al., CVPR 2021; verified absent labels, which it does not have, enter K.
    φ starts at logit 0.995 for present, logit 0.005 for verified absent and uniform in ± logit 0.6 for unknown labels,
    and learns at `estimator_lr` times the learning rate, without weight decay. It takes 4 bytes an entry, and 12 more
    for its gradient and the two averages of Adam.

    `linear_epochs` > 0 is LinearInit: so many epochs with a frozen backbone and without augmentation come first, and
    the head and the estimates are carried over; the learning rate rises for the same share of them as of the plan. The
    paper takes 25. k is 1.5 for VOC, 2.9 for COCO, 1.9 for NUS and
    31.4 for CUB.

    >>> from pluralis.models import create_model
    >>> setup = Setup(lambda: create_model("tiny", 2), 2, Labels.from_lists([[0]], 2, negatives=[[1]]))
    >>> Role(setup).estimates.sigmoid()
    tensor([[0.9950, 0.0050]], grad_fn=<SigmoidBackward0>)
    """

    paper = "Cole et al.: Multi-Label Learning from Single Positive Labels, CVPR 2021"
    start_bias = "zero"
    batch_coupled = True  # R takes the mean over the batch
    memory = ("estimates",)

    def __init__(self, setup: Setup, k: float = 1.5, linear_epochs: int = 0, estimator_lr: float = 10.0) -> None:
        super().__init__()
        self.k = number("method role", "k", k, low=0.0)
        self.linear_epochs = whole("method role", "linear_epochs", linear_epochs)
        self.estimator_lr = number("method role", "estimator_lr", estimator_lr, low=0.0)
        self.net, self.kept_rows = setup.make_net(), setup.rows
        self.estimates = nn.Parameter(first_estimates(setup.labels, setup.classes))

    def stages(self, plan: Stage) -> list[Stage]:
        if not self.linear_epochs:
            return [plan]
        rise = plan.warmup * self.linear_epochs / (plan.schedule_epochs or plan.epochs)
        first = replace(plan, epochs=self.linear_epochs, schedule_epochs=0, warmup=rise, freeze=-1, augment="none")
        return [first, plan]

    def param_groups(self, stage: Stage) -> list[dict[str, Any]]:
        groups = super().param_groups(stage)
        for group in groups:
            if group["name"] == "method":
                group |= {"lr_factor": self.estimator_lr, "weight_decay": 0.0}
        return groups

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        f, g = self.net(batch.views[0]).float(), self.estimates[batch.index]
        known = [functional.bce(z, batch.labels, reduction="sum") for z in (f, g)]
        cross = [binary_cross_entropy_with_logits(z, other.detach().sigmoid()) for z, other in ((f, g), (g, f))]
        return {
            "known": (known[0] + known[1]) / (2 * batch.labels.numel()),
            "cross": (cross[0] + cross[1]) / 2,
            "count": (self._count(f) + self._count(g)) / 2,
        }

    def _count(self, z: Tensor) -> Tensor:
        return ((z.sigmoid().sum(1).mean() - self.k) / z.shape[1]).square()

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)

    @torch.no_grad()
    def figures(self) -> dict[str, float]:
        return {"estimated labels an image": float(self.estimates.sigmoid().sum()) / max(1, len(self.estimates))}


def first_estimates(labels: Labels | None, classes: int) -> Tensor:
    """The logits [N, C] that the label estimates start from; [0, C] without labels."""
    if labels is None:
        return torch.empty(0, classes)
    bound = _logit(_UNKNOWN)
    estimates = torch.empty(labels.shape).uniform_(-bound, bound)
    rows, columns, values = labels.entries()
    estimates.numpy()[rows, columns] = np.where(values > 0, _logit(_PRESENT), _logit(_ABSENT))
    return estimates


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
