"""Risk estimators for learning from positive and unlabelled images, one class at a time: uPU and nnPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pluralis.labels import Labels
from pluralis.losses.kernels import check_batch, log_sigmoid, signs
from pluralis.losses.pointwise import pointwise
from pluralis.losses.priors import PriorLoss

_TINY = 1e-30  # a weight that marks an entry and adds nothing


def upu(logits: Tensor, labels: Tensor, prior: Tensor | float, written: Tensor | float | None = None) -> Tensor:
    """Unbiased risk: what the positives say about the absent labels is taken out of the mean over all images.

    L = (1/C) Σ_c π_c E_P[ℓ⁺] + E_X[ℓ⁻] − π_c E_P[ℓ⁻], ℓ⁺ = −log p, ℓ⁻ = −log(1−p), E_P the mean over the images in
    which c is written down, E_X that over all of them. du Plessis et al., ICML 2015.
    Their unlabelled images are a sample of their own; here it is the whole batch, which is what π_c is a share of.
    Verified absent labels are images of the batch and count in E_X like the unknown ones.

    prior: π, a number or [C]. written: f, a number or [C], the share of all training images in which c is written down.
    With it π_c E_P[ℓ] is the batch mean of (π_c/f_c)·1(y=1)·ℓ, whose expectation is right for batches of any size.
    Without it E_P runs over the positives of the batch and is 0 if there are none, so that a class that is rarely in a
    batch weighs less than π_c. There is only the mean: an entry has no loss of its own.

    >>> upu(torch.zeros(2, 1), torch.tensor([[1], [0]]), prior=0.5)
    tensor(0.6931)
    """
    check_batch(logits, labels)
    return pointwise(_unbiased, logits, _pull(signs(labels), logits, prior, written), coded=True)


def nnpu(logits: Tensor, labels: Tensor, prior: Tensor | float, written: Tensor | float | None = None) -> Tensor:
    """Non-negative risk: as `upu`, but the part that stands for absent labels cannot fall below 0.

    L = (1/C) Σ_c π_c E_P[ℓ⁺] + max(0, E_X[ℓ⁻] − π_c E_P[ℓ⁻]). Kiryo et al., NeurIPS 2017; where it is 0 there is
    no gradient (their Algorithm 1 takes a step up instead). Verified absent labels, which the paper does not have,
    stand outside the maximum: with A the images where c is verified absent,
    L_c = π_c E_P[ℓ⁺] + (1/N) Σ_A ℓ⁻ + max(0, (1/N) Σ_{X∖A} ℓ⁻ − π_c E_P[ℓ⁻]).
    The maximum is that of the batch; `prior` and `written` as for `upu`.

    >>> nnpu(torch.tensor([[2.0], [-9.0]]), torch.tensor([[1], [0]]), prior=0.9)
    tensor(0.1142)
    """
    check_batch(logits, labels)
    given = signs(labels)
    pull = _pull(given, logits, prior, written)
    share = given.clamp(max=0).add_(1).to(pull.dtype).sub_(pull)  # of ℓ⁻ under the maximum
    negative = log_sigmoid(logits.detach().to(pull.dtype).neg())  # −ℓ⁻
    off = negative.mul_(share).sum(0) > 0
    if logits.is_cpu and not torch.compiler.is_compiling() and not off.any():
        return pointwise(_unbiased, logits, pull, coded=True)  # only where looking costs no wait for the device
    return pointwise(_bounded, logits, torch.where(off & (given >= 0), -_TINY - pull, pull), coded=True)


class RiskLoss(PriorLoss):
    """A prior for each class, and the share of the training images in which it is written down, from `start`.

    The buffer `written` holds the shares as [C]; it is [0] as long as there are no training labels, and the loss then
    takes the share of each batch, in which entries depend on each other. A class that was never written counts as
    written once.
    """

    written: Tensor

    def __init__(self, owner: str, prior: float | Sequence[float] | None, k: float) -> None:
        super().__init__(owner, prior, k)
        self.register_buffer("written", torch.empty(0))
        self.batch_coupled = True

    def _start(self, labels: Labels) -> None:
        super()._start(labels)
        count = torch.as_tensor(labels.summary().positives, dtype=torch.float64)
        self.written = (count.clamp_(min=1) / max(len(labels), 1)).float().to(self.written.device)
        self.batch_coupled = type(self).batch_coupled

    def shares(self) -> Tensor | None:
        return self.written if len(self.written) else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(prefix + "written")
        if stored is not None:
            self.written = torch.empty_like(stored, device=self.written.device)
            self.batch_coupled = type(self).batch_coupled or not len(stored)
        super()._load_from_state_dict(state_dict, prefix, *args)


class UPU(RiskLoss):
    """Unbiased PU risk (see `functional.upu`).

    `prior`: one number, or one for each class; without it the observed frequencies, scaled to `k` labels an image.
    The share of images in which a class is written comes from the training labels too; where `start` was not called it
    is that of the batch, and entries then depend on each other.

    >>> UPU(prior=0.5)(torch.zeros(2, 1), torch.tensor([[1], [0]]))
    tensor(0.6931)
    """

    paper = "du Plessis, Niu, Sugiyama: Convex Formulation for Learning from Positive and Unlabeled Data, ICML 2015"

    def __init__(self, prior: float | Sequence[float] | None = None, k: float = 1.5) -> None:
        super().__init__("loss upu", prior, k)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return upu(logits, labels, self.priors(logits.shape[-1]), self.shares())


class NNPU(RiskLoss):
    """Non-negative PU risk (see `functional.nnpu`); `prior`, `k` and the share of written labels as for `upu`.

    >>> NNPU(prior=[0.5])(torch.zeros(2, 1), torch.tensor([[1], [0]]))
    tensor(0.6931)
    """

    paper = "Kiryo et al.: Positive-Unlabeled Learning with Non-Negative Risk Estimator, NeurIPS 2017"
    batch_coupled = True  # the maximum is taken of a mean over the batch

    def __init__(self, prior: float | Sequence[float] | None = None, k: float = 1.5) -> None:
        super().__init__("loss nnpu", prior, k)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return nnpu(logits, labels, self.priors(logits.shape[-1]), self.shares())


def _pull(given: Tensor, logits: Tensor, prior: Tensor | float, written: Tensor | float | None) -> Tensor:
    """[N, C] a = π/f for positives and 0 elsewhere: N times the risk of a class is Σ a·ℓ⁺ + (1−a)·ℓ⁻."""
    present = given.clamp(min=0).to(torch.promote_types(logits.dtype, torch.float32))
    if written is not None:
        return present * (prior / written)
    return present * (prior * len(given) / present.sum(0).clamp_(min=1))


def _unbiased(z: Tensor, pull: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """ℓ⁻ − a·z, because ℓ⁺ − ℓ⁻ = −z; the labels carry a."""
    loss = log_sigmoid(-z).addcmul_(pull, z).neg_()
    return loss, z.sigmoid().sub_(pull) if slope else None


def _bounded(z: Tensor, pull: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    """As `_unbiased`, and |a|·ℓ⁺ where a < 0: what is left of a positive, or of nothing, when the maximum is 0."""
    size = pull.abs()
    weight = torch.where(pull < 0, size, 1.0)  # of ℓ⁻
    loss = log_sigmoid(-z).mul_(weight).addcmul_(size, z).neg_()
    return loss, z.sigmoid().mul_(weight).sub_(size) if slope else None
