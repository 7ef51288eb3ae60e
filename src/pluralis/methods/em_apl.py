"""Entropy maximisation with asymmetric pseudo-labels: the least likely unknown labels become soft negatives."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pluralis.losses import functional
from pluralis.losses.base import Late
from pluralis.losses.soft import soft_em
from pluralis.method import Batch, Clock, Method, PredictTrain, Setup
from pluralis.params import choice, flag, number, whole
from pluralis.state import LabelState, lowest_rows

_RELEASED_EPS = 1e-5


class EmApl(Method):
    """EM loss and asymmetric pseudo-labelling (APL), self-paced.

    For `warmup` = T_w epochs the loss is that of `em`. Then, at the start of each of the T − T_w epochs that are left,
    the training set is predicted, and for each class the θ/(T − T_w) of its unknown labels (as many as were unknown at
    the start, rounded down) with the lowest predictions become negative pseudo-labels; the soft label s is the
    predicted probability at that time. Nothing is assigned twice or revised. With U the unknown labels that have no
    pseudo-label and S those that have one:

        L = −(1/NC) [ Σ_{y=1} log f + α Σ_U H(f) + β Σ_S (s log f + (1−s) log(1−f)) + Σ_{y=−1} log(1−f) ]

    Zhou et al., ECCV 2022, Eqs. 6-8 and Algorithm 1. The paper has no verified absent labels; here they take the
    cross-entropy with weight 1 and never a pseudo-label. The defaults are the paper's for VOC; its Table 6 (α, β, T_w)
    has 0.1, 0.9, 5 for COCO, 0.1, 0.2, 4 for NUS and 0.01, 0.4, 3 for CUB. If T_w ≥ T there are no pseudo-labels.

    The ablations of its Table 3: `theta=0.1` (low proportion), `soft=False` (hard labels, s = 0), `beta=1` (no
    down-weighting) and `positive_theta=0.1` (the highest predictions become positive pseudo-labels, in the same way,
    and are kept in a table of their own: 6 bytes an entry and not 3).
    `self_paced=False` gives all of θ at epoch T_w. `variant="released"` takes log(x + 1e-5) for every logarithm, as the
    published implementation does; it numbers epochs from 1 and labels after them, which is the same order of events.

    >>> from pluralis.models import create_model
    >>> from pluralis.labels import Labels
    >>> labels = Labels.from_lists([[0], [1], [1], [1]], 3)
    >>> method = EmApl(Setup(lambda: create_model("tiny", 3), 3, labels), theta=0.5, warmup=1)
    >>> logits = torch.tensor([[0.0, -1, 1], [0, 0, 2], [-1, 0, 3], [9, 0, 0]])
    >>> method.start_epoch(Clock(epoch=1, epochs=2), lambda: logits)
    >>> method.guesses.since.tolist()
    [[0, 0, 2], [0, 0, 0], [2, 0, 0], [0, 0, 2]]
    """

    paper = "Zhou et al.: Acknowledging the Unknown for Multi-label Learning with Single Positive Labels, ECCV 2022"
    start_bias = "zero"
    memory = ("guesses", "positives")

    def __init__(
        self,
        setup: Setup,
        alpha: float = 0.2,
        beta: float = 0.02,
        theta: float = 0.9,
        warmup: int = 5,
        self_paced: bool = True,
        soft: bool = True,
        positive_theta: float = 0.0,
        variant: str = "paper",
    ) -> None:
        super().__init__()
        owner = "method em-apl"
        self.alpha = number(owner, "alpha", alpha, low=0.0)
        self.beta = number(owner, "beta", beta, above=0.0)
        self.theta = number(owner, "theta", theta, low=0.0, high=1.0)
        self.warmup = whole(owner, "warmup", warmup)
        self.self_paced = flag(owner, "self_paced", self_paced)
        self.soft = flag(owner, "soft", soft)
        self.positive_theta = number(owner, "positive_theta", positive_theta, low=0.0, high=1.0)
        self.eps = _RELEASED_EPS if choice(owner, "variant", variant, ("paper", "released")) == "released" else 0.0
        self.labels = setup.labels
        self.net = setup.make_net()
        self.guesses = LabelState(setup.rows, setup.classes)
        self.positives = LabelState(setup.rows if positive_theta else 0, setup.classes)

    def start_epoch(self, clock: Clock, predict_train: PredictTrain) -> None:
        first = clock.epoch == self.warmup
        if clock.epoch < self.warmup or not (first or self.self_paced):
            return
        rounds = clock.epochs - self.warmup if self.self_paced else 1
        logits = predict_train()
        self._assign(self.guesses, logits, self.theta / rounds, clock)
        if self.positive_theta:
            self._assign(self.positives, logits, self.positive_theta / rounds, clock)

    def _assign(self, state: LabelState, logits: Tensor, share: float, clock: Clock) -> None:
        assert self.labels is not None
        # 0.7·90 is 62.99999999999999: what rounding took away is given back before the floor.
        counts = np.floor(share * self.labels.summary().unknown + 1e-6).astype(np.int64)
        taken = self.labels.dense()
        for other in (self.guesses, self.positives):
            if len(other.since):
                taken |= other.since.cpu().numpy().view(np.int8)
        present = state is self.positives
        for column, rows, chosen in lowest_rows(logits.numpy(), taken, counts.tolist(), highest=present):
            values = chosen.sigmoid() if self.soft else torch.full_like(chosen, float(present))
            state.assign(rows, column, values, clock.epoch)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.net(batch.views[0])
        if clock.epoch < self.warmup and not self.eps:
            return {"loss": functional.em(logits, batch.labels, self.alpha)}
        value, guessed = self.guesses(batch.index)
        if self.positive_theta:
            more, also = self.positives(batch.index)
            value, guessed = value + more, guessed | also  # no entry is in both, and what is not guessed is 0
        known = batch.labels != 0
        target = torch.where(known, (batch.labels > 0).to(value), value)
        weight = known.to(value).add_(guessed, alpha=self.beta)
        return {"loss": soft_em(logits, target, weight, self.alpha, self.eps)}

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)

    def late(self) -> list[Late]:
        return [Late("method em-apl: no pseudo-label will be assigned", self.warmup, "warmup")]

    def guessed(self) -> dict[str, LabelState]:
        return {"absent": self.guesses} | ({"present": self.positives} if self.positive_theta else {})

    def figures(self) -> dict[str, float]:
        counts = {"pseudo-labels": float(self.guesses.since.count_nonzero())}
        if self.positive_theta:
            counts["positive pseudo-labels"] = float(self.positives.since.count_nonzero())
        return counts
