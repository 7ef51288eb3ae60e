"""Expected negatives: as many unknown labels of a class count as absent as the class should have."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pluralis import distributed
from pluralis.label_summary import LabelSummary
from pluralis.losses import functional
from pluralis.losses.base import Late
from pluralis.method import Batch, Clock, Method, PredictTrain, Setup
from pluralis.params import number
from pluralis.state import lowest_rows


class ExpectedNegatives(Method):
    """Expected negative loss (EN): the unknown labels with the highest average predictions are left out.

    For every image and class a moving average of the predicted probability is kept, a ← μ a + (1−μ) p, one update an
    epoch. At the start of an epoch the N − N_c images with the lowest averages of class c are its expected negatives E:

        L = −(1/NC) [ Σ_{y=1} log p + Σ_{E and y=−1} log(1−p) ]

    and all other unknown labels are left out. Verelst et al., WACV 2023. N_c, the expected positives of the class, is
    its share of the written labels that are present times k·N, where k is the expected number of labels an image; it
    is never less than what was written. Labels that are present are never negatives, and labels that are verified
    absent are negatives always and count among the N − N_c; a class of which no label was written has N_c = 0.
    In the first epoch there is no average yet and all unknown labels count as absent, as in `an`. No implementation was
    published; μ is our choice.

    >>> from pluralis.labels import Labels
    >>> from pluralis.models import create_model
    >>> setup = Setup(lambda: create_model("tiny", 2), 2, Labels.from_lists([[0], [0], [1], [1]], 2))
    >>> method = ExpectedNegatives(setup)
    >>> method.score[:] = torch.tensor([[0.9, 0.2], [0.9, 0.1], [0.3, 0.9], [0.4, 0.9]])
    >>> method.start_epoch(Clock(epoch=1, epochs=2), lambda: torch.empty(0))
    >>> method.negative.tolist()
    [[False, False], [False, True], [True, False], [False, False]]
    """

    paper = (
        "Verelst et al.: Spatial Consistency Loss for Training Multi-Label Classifiers from Single-Label Annotations, "
        "WACV 2023"
    )
    start_bias = "zero"
    memory = ("score", "negative")
    score: Tensor  # [N, C] float16, the moving average
    negative: Tensor  # [N, C] bool, the expected negatives of this epoch

    def __init__(self, setup: Setup, k: float = 1.5, momentum: float = 0.8) -> None:
        super().__init__()
        self.k = number("method en", "k", k, above=0.0)
        self.momentum = number("method en", "momentum", momentum, low=0.0, below=1.0)
        self.labels, self.kept_rows = setup.labels, setup.rows
        self.net = setup.make_net()
        self.register_buffer("score", torch.zeros(setup.rows, setup.classes, dtype=torch.float16))
        self.register_buffer("negative", torch.zeros(setup.rows, setup.classes, dtype=torch.bool))

    def start_epoch(self, clock: Clock, predict_train: PredictTrain) -> None:
        assert self.labels is not None
        if clock.epoch == 0:
            self.negative.copy_(torch.from_numpy(self.labels.dense() == 0))
            return
        counts = expected_negatives(self.labels.summary(), self.k)
        self.negative.zero_()
        for column, rows, _ in lowest_rows(self.score.cpu().numpy(), self.labels.dense(), counts.tolist()):
            self.negative[:, column].index_fill_(0, rows.to(self.negative.device), True)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.net(batch.views[0])
        self._remember(batch, logits.detach().float().sigmoid(), clock)
        labels = batch.labels.masked_fill(self.negative[batch.index], -1)
        return {"loss": functional.bce(logits, labels, reduction="sum") / labels.numel()}

    def _remember(self, batch: Batch, p: Tensor, clock: Clock) -> None:
        if clock.epoch > 0:
            p = self.score[batch.index].float().lerp_(p, 1 - self.momentum)
        # Every process must hold what the others saw, so that one may write the checkpoint for all of them.
        mine = len(p) if batch.weight else 0
        self.score[distributed.gather_rows(batch.index[:mine])] = distributed.gather_rows(p[:mine]).to(self.score)

    def late(self) -> list[Late]:
        return [Late("method en: no label will be left out", 1)]

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)

    def figures(self) -> dict[str, float]:
        return {"expected negatives": float(self.negative.count_nonzero())}


def expected_negatives(known: LabelSummary, k: float) -> np.ndarray:
    """How many of the unknown labels of each class [C] should be absent when an image has `k` labels."""
    written = known.positives
    rows = len(known.row_positives)
    expected = np.round(k * rows * written / max(1, written.sum())).astype(np.int64)
    missing = np.maximum(expected - written, 0)
    return np.maximum(known.unknown - missing, 0)
