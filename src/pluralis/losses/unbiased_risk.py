"""Risk estimators for learning from positive and unlabelled images, one class at a time: uPU and nnPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pluralis.losses.kernels import check_batch, log_sigmoid, signs
from pluralis.losses.pointwise import pointwise
from pluralis.losses.priors import PriorLoss

_TINY = 1e-30  # a weight that marks an entry and adds nothing


def upu(logits: Tensor, labels: Tensor, prior: Tensor | float) -> Tensor:
    """Unbiased risk: what the positives say about the absent labels is taken out of the mean over all images.

    L = (1/C) Σ_c π_c E_P[ℓ⁺] + E_X[ℓ⁻] − π_c E_P[ℓ⁻], ℓ⁺ = −log p, ℓ⁻ = −log(1−p), E_P the mean over the images of the
    batch in which c is written down (0 without any), E_X that over all of them. du Plessis et al., ICML 2015.
    Their unlabelled images are a sample of their own; here it is the whole batch, which is what π_c is a share of.
    Verified absent labels are images of the batch and count in E_X like the unknown ones.

    prior: π, a number or [C]. There is only the mean: an entry has no loss of its own.

    >>> upu(torch.zeros(2, 1), torch.tensor([[1], [0]]), prior=0.5)
    tensor(0.6931)
    """
    check_batch(logits, labels)
    return pointwise(_unbiased, logits, _pull(signs(labels), logits, prior))


def nnpu(logits: Tensor, labels: Tensor, prior: Tensor | float) -> Tensor:
    """Non-negative risk: as `upu`, but the part that stands for absent labels cannot fall below 0.

    L = (1/C) Σ_c π_c E_P[ℓ⁺] + max(0, E_X[ℓ⁻] − π_c E_P[ℓ⁻]). Kiryo et al., NeurIPS 2017; where it is 0 there is
    no gradient (their Algorithm 1 takes a step up instead). Verified absent labels, which the paper does not have,
    stand outside the maximum: with A the images where c is verified absent,
    L_c = π_c E_P[ℓ⁺] + (1/N) Σ_A ℓ⁻ + max(0, (1/N) Σ_{X∖A} ℓ⁻ − π_c E_P[ℓ⁻]).

    >>> nnpu(torch.tensor([[2.0], [-9.0]]), torch.tensor([[1], [0]]), prior=0.9)
    tensor(0.1142)
    """
    check_batch(logits, labels)
    given = signs(labels)
    pull = _pull(given, logits, prior)
    share = given.clamp(max=0).add_(1).to(pull.dtype).sub_(pull)  # of ℓ⁻ under the maximum
    negative = log_sigmoid(logits.detach().to(pull.dtype).neg())  # −ℓ⁻
    off = negative.mul_(share).sum(0) > 0
    if logits.is_cpu and not torch.compiler.is_compiling() and not off.any():
        return pointwise(_unbiased, logits, pull)  # only where looking costs no wait for the device
    return pointwise(_bounded, logits, torch.where(off & (given >= 0), -_TINY - pull, pull))


class UPU(PriorLoss):
    """Unbiased PU risk (see `functional.upu`).

    `prior`: one number, or one for each class; without it the observed frequencies, scaled to `k` labels an image.

    >>> UPU(prior=0.5)(torch.zeros(2, 1), torch.tensor([[1], [0]]))
    tensor(0.6931)
    """

    paper = "du Plessis, Niu, Sugiyama: Convex Formulation for Learning from Positive and Unlabeled Data, ICML 2015"
    batch_coupled = True

    def __init__(self, prior: float | Sequence[float] | None = None, k: float = 1.5) -> None:
        super().__init__("loss upu", prior, k)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return upu(logits, labels, self.priors(logits.shape[-1]))


class NNPU(PriorLoss):
    """Non-negative PU risk (see `functional.nnpu`); `prior` and `k` as for `upu`.

    >>> NNPU(prior=[0.5])(torch.zeros(2, 1), torch.tensor([[1], [0]]))
    tensor(0.6931)
    """

    paper = "Kiryo et al.: Positive-Unlabeled Learning with Non-Negative Risk Estimator, NeurIPS 2017"
    batch_coupled = True

    def __init__(self, prior: float | Sequence[float] | None = None, k: float = 1.5) -> None:
        super().__init__("loss nnpu", prior, k)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return nnpu(logits, labels, self.priors(logits.shape[-1]))


def _pull(given: Tensor, logits: Tensor, prior: Tensor | float) -> Tensor:
    """[N, C] a = N·π/|P| for positives and 0 elsewhere: N times the risk of a class is Σ a·ℓ⁺ + (1−a)·ℓ⁻."""
    present = given.clamp(min=0).to(torch.promote_types(logits.dtype, torch.float32))
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
