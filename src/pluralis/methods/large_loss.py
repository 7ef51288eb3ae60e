"""Large losses of unknown labels, taken for labels that nobody wrote down and corrected for good."""

from __future__ import annotations

import torch
from torch import Tensor

from pluralis import distributed
from pluralis.losses import functional
from pluralis.losses.base import Late
from pluralis.losses.large_loss import how_many, largest_unknown
from pluralis.method import Batch, Clock, Method, Setup
from pluralis.params import number
from pluralis.state import LabelState


class LargeLossCp(Method):
    """Large loss, permanent correction (LL-Cp): the unknown labels with the largest losses become present for good.

    Unknown labels count as absent. In each batch, from the second epoch on, the k = ⌈N·C·δ⌉ of them with the largest
    losses −log(1−p) become present, in this step and from then on:

        L = −(1/NC) [ Σ_{y=1 or corrected} log p + Σ_{others} log(1−p) ]

    Kim et al., CVPR 2022. N is the number of rows in the batch; fewer are corrected where fewer are
    unknown. Labels that are verified absent count in N·C, take the cross-entropy and are never corrected.

    >>> from pluralis.labels import Labels
    >>> from pluralis.models import create_model
    >>> setup = Setup(lambda: create_model("tiny", 3), 3, Labels.from_lists([[0], [1]], 3))
    >>> method = LargeLossCp(setup, delta=0.1)
    >>> batch = Batch((torch.zeros(2, 3, 8, 8),), torch.tensor([[1, 0, 0], [0, 1, 0]]), torch.arange(2))
    >>> _ = method(batch, Clock(epoch=1, epochs=2))
    >>> method.figures()
    {'corrected labels': 1.0}
    """

    paper = "Kim et al.: Large Loss Matters in Weakly Supervised Multi-Label Classification, CVPR 2022"
    start_bias = "zero"
    batch_coupled = True  # the largest losses are those of the batch
    memory = ("corrected",)

    def __init__(self, setup: Setup, delta: float = 0.001) -> None:
        super().__init__()
        self.delta = number("method ll-cp", "delta", delta, low=0.0, high=1.0)
        self.net = setup.make_net()
        self.corrected = LabelState(setup.rows, setup.classes)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.net(batch.views[0])
        _, before = self.corrected(batch.index)
        labels = batch.labels.masked_fill(before, 1)
        if clock.epoch > 0 and self.delta > 0:
            unknown = labels == 0
            now = torch.zeros_like(unknown)
            now.view(-1)[largest_unknown(logits, unknown, how_many(labels.numel(), self.delta))] = True
            now &= unknown
            labels = labels.masked_fill(now, 1)
            # Every process must hold what the others found, so that one may write the checkpoint for all of them.
            mine = len(labels) if batch.weight else 0
            index, entries = (distributed.gather_rows(part[:mine]) for part in (batch.index, now))
            self.corrected.mark(index, entries, 1.0, clock.epoch)
        return {"loss": functional.an(logits, labels)}

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)

    def late(self) -> list[Late]:
        return [Late("method ll-cp: no label will be corrected", 1)]

    def guessed(self) -> dict[str, LabelState]:
        return {"present": self.corrected}

    def figures(self) -> dict[str, float]:
        return {"corrected labels": float(self.corrected.since.count_nonzero())}
