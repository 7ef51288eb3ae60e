"""LAC: pseudo-labels that hold under strong augmentation, and label-wise embeddings that cluster by class."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluralis import distributed
from pluralis.errors import RecipeError
from pluralis.losses import functional
from pluralis.losses.contrast import VARIANTS, label_contrast
from pluralis.method import Batch, Clock, Method, Setup
from pluralis.params import choice, flag, number, whole
from pluralis.stage import Stage
from pluralis.state import Queue

_NAME = "method lac"


class LAC(Method):
    """Label-aware global consistency: assumed negatives, pseudo-labels and contrast between label-wise embeddings.

        L = L_AN + λ_PLC L_PLC + λ_LAC L_LAC                                                             (Eq. 3)
        L_AN   assume negative on the weak view, which train.augment names (the paper: a flip)           (Eq. 2)
        L_PLC  on the strong view, for unknown labels: −[1(p_w ≥ δ) log p_s + 1(p_w ≤ 1−δ) log(1−p_s)]   (Eq. 4)
        L_LAC  between the embeddings z = g(f_j(x)) where ŷ = 1 or p_w ≥ δ, and a queue of them           (Eq. 7)

    Xie, Xiao, Huang, NeurIPS 2022. p_w is without gradient; g is two linear layers with a ReLU, to length 1.

    Two stages: `warmup` epochs (as many as planned, if it is not given) without L_LAC, whose projector g does not move
    then, and the planned epochs with it, from the weights that the first stage ended with; `end_to_end` trains all at
    once, and without `lambda_lac` there is one stage. A first stage of another length has the learning rate of the plan
    drawn out or together: it rises for the same share of the epochs.
    `delta` is the threshold of the first stage and `delta_main` of the second; 0.6 and 0.9, temperature 0.5 and K = 512
    were published for COCO, where the paper chooses them on validation data. `queue = 0` contrasts the batch alone.
    The queue holds the weak view's embeddings; of more than K in one step the last K stay.

    L_AN and L_PLC are divided by N·C and so is, with a further C, L_LAC: all three are 1/C of the paper's, whose Eqs. 2
    and 4 divide by N and Eq. 7 by N·C. In L_LAC an embedding of the weak view meets those of the weak view and of the
    queue and, where it would meet itself, the strong view's of the same label of the same image. Verified absent labels
    count in L_AN, and are never pseudo-labelled or contrasted.

    `variant="released"`: L_PLC takes the observed positives too and is divided by the number of pseudo-labels, L_LAC is
    `label_contrast`'s of that name (its mean, undivided) over both views alike, both are queued (2·K rows), and the
    strong view is `strong-released`. There, queued embeddings were anchors too; here only those of the batch are.

    Both views go through the network as one batch, so batch norms that are not frozen see them mixed (the published
    runs freeze them: `train.freeze_bn`). Needs the head `label-decoder`.

    >>> from pluralis.models import create_model
    >>> method = LAC(Setup(lambda: create_model("tiny", 3, "label-decoder", head_params={"dim": 16}), 3), queue=64)
    >>> view, labels = torch.zeros(2, 3, 24, 24), torch.tensor([[1, 0, 0], [0, 1, -1]])
    >>> sorted(method(Batch((view, view), labels, torch.arange(2)), Clock(stage=1)))
    ['an', 'lac', 'plc']
    """

    paper = (
        "Xie et al.: Label-Aware Global Consistency for Multi-Label Learning with Single Positive Labels, NeurIPS 2022"
    )
    views = (None, "strong")
    batch_coupled = True  # embeddings are contrasted with those of other rows
    memory = ("queue.", "projector.")

    def __init__(
        self,
        setup: Setup,
        delta: float = 0.6,
        delta_main: float = 0.9,
        temperature: float = 0.5,
        queue: int = 512,
        lambda_plc: float = 1.0,
        lambda_lac: float = 1.0,
        dim: int = 128,
        warmup: int | None = None,
        end_to_end: bool = False,
        variant: str = "paper",
    ) -> None:
        super().__init__()
        self.delta = number(_NAME, "delta", delta, low=0.5, below=1.0)
        self.delta_main = number(_NAME, "delta_main", delta_main, low=0.5, below=1.0)
        self.temperature = number(_NAME, "temperature", temperature, low=0.01)
        self.lambda_plc = number(_NAME, "lambda_plc", lambda_plc, low=0.0)
        self.lambda_lac = number(_NAME, "lambda_lac", lambda_lac, low=0.0)
        self.warmup = None if warmup is None else whole(_NAME, "warmup", warmup, low=1)
        self.end_to_end = flag(_NAME, "end_to_end", end_to_end)
        self.variant = choice(_NAME, "variant", variant, VARIANTS)
        self.released = variant == "released"
        whole(_NAME, "queue", queue)
        whole(_NAME, "dim", dim, low=1)
        self.net = setup.make_network(_NAME)
        head: Any = self.net.head
        if not (hasattr(head, "embed") and hasattr(head, "classify")):
            raise RecipeError(
                f"{_NAME} contrasts an embedding for each label, which the head {type(head).__name__} does not make:"
                ' set model.head = "label-decoder"'
            )
        self.projector = nn.Sequential(nn.Linear(head.dim, head.dim), nn.ReLU(), nn.Linear(head.dim, dim))
        self.queue = Queue(queue * (2 if self.released else 1), dim)
        if self.released:
            self.views = (None, "strong-released")  # type: ignore[misc]
        self._selected: tuple[Tensor, Tensor] | None = None  # what `forward` leaves for `after_step`

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def stages(self, plan: Stage) -> list[Stage]:
        if self.end_to_end or self.lambda_lac == 0:
            return [plan]
        if self.warmup is None:
            return [plan, plan]
        rise = plan.warmup * self.warmup / (plan.schedule_epochs or plan.epochs)
        return [replace(plan, epochs=self.warmup, schedule_epochs=0, warmup=rise), plan]

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        contrast = self.lambda_lac > 0 and (self.end_to_end or clock.stage > 0)
        delta = self.delta_main if contrast else self.delta
        used = batch.views if contrast or self.lambda_plc > 0 else batch.views[:1]
        head: Any = self.net.head
        embedded = head.embed(self.net.features(torch.cat([view.float() for view in used])))
        logits = head.classify(embedded).float()
        labels = batch.labels
        weak, strong = logits[: len(labels)], logits[len(labels) :]

        terms = {"an": functional.an(weak, labels)}
        if self.lambda_plc > 0:
            terms["plc"] = self.lambda_plc * pseudo_label_loss(weak.detach(), strong, labels, delta, self.variant)
        if contrast:
            chosen = (labels > 0) | ((labels == 0) & (weak.detach() >= logit(delta)))
            terms["lac"] = self.lambda_lac * self._contrast(embedded, chosen, batch.weight)
        return terms

    def _contrast(self, embedded: Tensor, chosen: Tensor, weight: float) -> Tensor:
        """L_LAC of the chosen [B, C] entries of both views' embeddings [2B, C, d]."""
        row, classes = chosen.nonzero(as_tuple=True)
        both = torch.cat([embedded[row, classes], embedded[row + len(chosen), classes]])
        z, twins = self.projector(both).float(), None
        if self.released:
            classes = classes.repeat(2)
        else:
            z, twins = z.chunk(2)
        past, entries = (self.queue.rows, self.queue.classes), chosen.numel()
        loss = label_contrast(z, classes, *past, self.temperature, entries, self.variant, twins)
        kept = 0 if weight == 0 else len(z)  # a batch of weight 0 is a stand-in for none: its row is another process's
        self._selected = F.normalize(z[:kept].detach(), dim=1), classes[:kept]
        return loss if self.released else loss / chosen.shape[1]

    def after_step(self, clock: Clock) -> None:
        if self._selected is None:
            return
        rows, classes = self._selected
        self._selected = None
        self.queue.push(distributed.gather_rows(rows), distributed.gather_rows(classes))


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def pseudo_label_loss(weak: Tensor, strong: Tensor, labels: Tensor, delta: float, variant: str = "paper") -> Tensor:
    """L_PLC: the cross-entropy of the strong view where the weak view is sure; see `LAC`.

    weak, strong: logits [N, C], weak without gradient; labels: [N, C]. At δ = 0.5 and p = 0.5 exactly both terms of
    Eq. 4 apply. `variant="released"` includes observed positives, is strict below, and divides by the number of
    pseudo-labels instead of N·C.

    >>> z = torch.tensor([[3.0, 0.0, -3.0, -3.0]])
    >>> pseudo_label_loss(z, torch.zeros(1, 4), torch.tensor([[0, 0, 0, -1]]), delta=0.6) / torch.tensor(2.0).log()
    tensor(0.5000)
    """
    released, bound, unknown = variant == "released", logit(delta), labels == 0
    up = (weak >= bound) & unknown
    down = (weak < -bound if released else weak <= -bound) & unknown
    if released:
        up = up | (labels > 0)
    loss = (up * -F.logsigmoid(strong) + down * -F.logsigmoid(-strong)).sum()
    return loss / ((up.sum() + down.sum()).clamp(min=1) if released else max(labels.numel(), 1))
