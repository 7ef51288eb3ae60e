"""Assume negative, with a penalty on the size of the weights."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pluralis.losses import functional
from pluralis.method import Batch, Clock, Method, Setup
from pluralis.params import number


class _Penalty(Method):
    start_bias = "zero"
    name: ClassVar[str]

    def __init__(self, setup: Setup, weight: float = 1e-6) -> None:
        super().__init__()
        self.weight = number(f"method {self.name}", "weight", weight, low=0.0)
        self.net = setup.make_net()

    def size(self, parameter: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        loss = functional.an(self.net(batch.views[0]), batch.labels)
        sizes = [self.size(p) for p in self.net.parameters() if p.requires_grad]
        return {"an": loss, "penalty": self.weight * torch.stack(sizes).sum()}

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)


class L1R(_Penalty):
    """Assume negative with an l1 penalty: L = L_AN + weight · Σ|θ| over all trained parameters θ of the network.

    Zhou et al., ECCV 2022, compare with it (Table 1): weight 1e-6 for VOC, 1e-7 for COCO and NUS, 1e-9 for CUB.
    Verified absent labels count as absent, like the unknown ones.

    >>> from pluralis.models import create_model
    >>> L1R(Setup(lambda: create_model("tiny", 2), 2)).size(torch.tensor([3.0, -1.0]))
    tensor(4.)
    """

    paper = "Zhou et al.: Acknowledging the Unknown for Multi-label Learning with Single Positive Labels, ECCV 2022"
    name = "l1r"

    def size(self, parameter: Tensor) -> Tensor:
        return parameter.abs().sum()


class L2R(_Penalty):
    """Assume negative with an l2 penalty: L = L_AN + weight · Σθ² over all trained parameters θ of the network.

    Zhou et al., ECCV 2022, compare with it (Table 1): weight 1e-6 for VOC and NUS, 1e-7 for COCO, 1e-8 for CUB.
    Verified absent labels count as absent, like the unknown ones.

    >>> from pluralis.models import create_model
    >>> L2R(Setup(lambda: create_model("tiny", 2), 2)).size(torch.tensor([3.0, -1.0]))
    tensor(10.)
    """

    paper = "Zhou et al.: Acknowledging the Unknown for Multi-label Learning with Single Positive Labels, ECCV 2022"
    name = "l2r"

    def size(self, parameter: Tensor) -> Tensor:
        return parameter.square().sum()
