"""Class-aware selective loss: which unknown labels count as absent depends on the batch and on the class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pluralis.labels import Labels
from pluralis.losses.fused import fusible, selective
from pluralis.losses.kernels import LOG2E, check_batch, signs, softplus
from pluralis.losses.large_loss import largest_unknown
from pluralis.losses.pointwise import pointwise
from pluralis.losses.priors import PriorLoss
from pluralis.params import number, whole

_ASSUMED = 2  # a code of the kernel: unknown, and counted as absent; −1 is present, 1 absent and 0 left out


def csl(
    logits: Tensor,
    labels: Tensor,
    gamma_pos: float = 0.0,
    gamma_neg: float = 1.0,
    gamma_unann: float = 2.0,
    likely: int = 5,
    common: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Partial asymmetric loss: unknown labels count as absent, except those that are probably present.

    L = −(1/NC) Σ [1(y=1) (1−p)^{γ+} log p + 1(y=−1) p^{γ−} log(1−p) + 1(y=0) ω p^{γu} log(1−p)]; ω = 0 for the
    `likely`·N unknown entries with the highest p of the batch and for classes that are `common` ([C] bool), else 1.
    Ben-Baruch et al., CVPR 2022, who take the sum. A common class without verified absent labels is learnt from its
    positives alone, as published.

    >>> import torch
    >>> z = torch.tensor([[0.0, 0.0, 2.0]])
    >>> csl(z, torch.tensor([[1, 0, 0]]), likely=1, reduction="none")
    tensor([[0.6931, 0.1733, 0.0000]])
    """
    check_batch(logits, labels, reduction)
    gammas, k = (gamma_pos, gamma_neg, gamma_unann), min(likely * logits.shape[0], logits.numel())
    if fusible(logits):
        among = marked(logits, labels, k) if k > 0 else None
        kernel = partial(selective, among=among, common=common, gammas=gammas)
        return pointwise(kernel, logits, labels, reduction, coded=True)
    sign = signs(labels).contiguous()
    unknown = sign.logical_not()  # several times faster than a comparison
    code = (unknown if common is None else unknown & ~common).view(torch.int8).mul(_ASSUMED)
    if k > 0:
        code.view(-1).index_fill_(0, largest_unknown(logits, unknown, k), 0)
    code.sub_(sign)
    return pointwise(partial(_selective, gammas=gammas), logits, code, reduction, coded=True)


def marked(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """The logits of unknown entries, but +∞ for the k largest; of known ones −∞, or +∞ if there are too few others.

    >>> import torch
    >>> marked(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[1, 0, 0]]), 1)
    tensor([[-inf, 1., inf]])
    """
    among = torch.where(labels.contiguous() == 0, logits.detach().contiguous(), -math.inf)
    flat = among.view(-1)
    flat.index_fill_(0, flat.topk(k, sorted=False).indices, math.inf)
    return among


class CSL(PriorLoss):
    """Class-aware selective loss (see `functional.csl`).

    `likely` unknown labels an image and all of classes with a prior above `max_prior` are ignored. `prior`: one number,
    or one for each class; the paper takes it from a model that was trained without unknown labels. Without it the
    observed frequencies, scaled to `k` labels an image; where there are no training labels either, no class is common.

    The paper's settings are for data with many classes; with few they would leave every unknown label out, or so many
    that the rest are all low. So where `likely` is not stated, it is the paper's 5 from 80 classes on, as many as COCO
    has, a sixteenth of them below that, 1 for 4 to 31, and 0 for fewer. And where the mean prior is above `max_prior`,
    so that a class like any other would be common, twice that mean takes its place (one prior for all then makes none
    common).

    >>> import torch
    >>> CSL(likely=0, prior=0.0)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.4332)
    """

    paper = "Ben-Baruch et al.: Multi-label Classification with Partial Annotations …, CVPR 2022"
    batch_coupled = True
    common: Tensor

    def __init__(
        self,
        gamma_pos: float = 0.0,
        gamma_neg: float = 1.0,
        gamma_unann: float = 2.0,
        likely: int | None = None,
        max_prior: float = 0.05,
        prior: float | Sequence[float] | None = None,
        k: float = 1.5,
    ) -> None:
        super().__init__("loss csl", prior, k)
        self.gamma_pos = number("loss csl", "gamma_pos", gamma_pos, low=0.0)
        self.gamma_neg = number("loss csl", "gamma_neg", gamma_neg, low=0.0)
        self.gamma_unann = number("loss csl", "gamma_unann", gamma_unann, low=0.0)
        self.likely = None if likely is None else whole("loss csl", "likely", likely)
        self.max_prior = number("loss csl", "max_prior", max_prior, low=0.0, high=1.0)
        self.register_buffer("common", self._common(), persistent=False)

    def _start(self, labels: Labels) -> None:
        super()._start(labels)
        self.common = self._common()

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        classes = logits.shape[-1]
        if len(self.common):
            self._check(classes)
        common = self.common if len(self.common) else None
        likely = min(5, max(classes // 16, 1), classes // 4) if self.likely is None else self.likely
        return csl(logits, labels, self.gamma_pos, self.gamma_neg, self.gamma_unann, likely, common)

    def _common(self) -> Tensor:
        """[C] bool, or as long as `class_prior` is."""
        mean = self.class_prior.mean()
        return self.class_prior > torch.where(mean > self.max_prior, 2 * mean, self.max_prior)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.common = self._common()


def _selective(
    z: Tensor, code: Tensor, slope: bool, gammas: tuple[float, float, float]
) -> tuple[Tensor, Tensor | None]:
    """−x^γ log(1−x) as in asymmetric loss, of the codes −1 (present), 1 (absent) and `_ASSUMED`; 0 is left out."""
    given = code.to(z.dtype)
    side = given.clamp(-1, 1)
    wrong = z * side  # the logit of x
    # The γ of an entry by the parabola through the three values at −1, 1 and 2; what it is at 0 does not matter.
    present, absent, assumed = (gamma * LOG2E for gamma in gammas)
    a = (absent - present) / 2
    b = (assumed - absent - a) / 3
    gamma = given.mul(a).add_(present + a - b).addcmul_(given, given, value=b)
    x, log_rest = wrong.sigmoid(), softplus(wrong)
    factor = wrong.sub_(log_rest).mul_(gamma).exp2_().mul_(side)  # log x = r − log(1 + e^r)
    loss = (factor * log_rest).mul_(side)
    if not slope:
        return loss, None
    rest = gamma.addcmul_(gamma, x, value=-1)  # γ (1−x)
    return loss, x.addcmul_(rest, log_rest, value=1 / LOG2E).mul_(factor)
