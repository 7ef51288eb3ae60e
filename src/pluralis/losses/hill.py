"""Losses that forgive unknown labels with a high probability: Hill, and self-paced loss correction (SPLC)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from pluralis.losses.base import VARIANTS, Late, Loss
from pluralis.losses.kernels import CERTAIN, power, softplus, where_present
from pluralis.losses.pointwise import pointwise
from pluralis.params import choice, number, whole

LAMBDA = 1.5
SPLC_VARIANTS = ("released", "hill")
PAPER = "Zhang et al.: Simple and Robust Loss Design for Multi-Label Learning with Missing Labels, 2021"


def hill(
    logits: Tensor,
    labels: Tensor,
    lam: float = LAMBDA,
    margin: float = 1.0,
    gamma: float = 2.0,
    reduction: str = "mean",
) -> Tensor:
    """Hill loss: the gradient on an unknown label rises with p and falls again where the label may well be present.

    L = (1/NC) Σ [1(y=1) (1−p_m)^γ (−log p_m) + 1(y=0) (λ−p) p² − 1(y=−1) log(1−p)], p_m = σ(z − m).
    Zhang et al., 2021, who take the sum; Chen et al., IJCAI 2024, Eq. 24, have m = γ = 0, that is −log p for the
    present. Verified absent labels need no forgiving and take the cross-entropy.

    >>> import torch
    >>> hill(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), margin=0.0, gamma=0.0, reduction="none")
    tensor([[0.6931, 0.2500, 0.6931]])
    """
    return pointwise(partial(_hill, lam=lam, margin=margin, gamma=gamma), logits, labels, reduction)


def splc(
    logits: Tensor,
    labels: Tensor,
    tau: float = 0.6,
    margin: float = 1.0,
    gamma: float = 2.0,
    correct: bool = True,
    variant: str = "released",
    reduction: str = "mean",
) -> Tensor:
    """Focal margin loss with self-paced correction: an unknown label with p > τ counts as present in this step.

    L = (1/NC) Σ  (1−p_m)^γ (−log p_m)                                       y = +1, with p_m = σ(z − m)
                  1(p ≤ τ) p^γ (−log(1−p)) + 1(p > τ) (1−p)^γ (−log p)       y = 0, or the first alone unless `correct`
                  −log(1−p)                                                  y = −1, never corrected (not in the paper)
    Zhang et al., 2021, as in the code that they released; they take the sum. `variant="hill"`: as in Table 1 and
    Eq. 25 of Chen et al., IJCAI 2024, (λ−p) p² with λ = 1.5 where p ≤ τ, and the margin for corrected labels too.

    >>> import torch
    >>> splc(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2), reduction="none")
    tensor([[0.0227, 0.1733]])
    """
    choice("loss splc", "variant", variant, SPLC_VARIANTS)
    threshold = math.log(tau / (1 - tau)) if correct else math.inf
    kernel = partial(_splc, threshold=threshold, margin=margin, gamma=gamma, hill=variant == "hill")
    return pointwise(kernel, logits, labels, reduction)


class Hill(Loss):
    """Hill loss with focal margin for present labels (see `functional.hill`).

    `variant="released"`: −log p for present labels, as in the table and code of Chen et al., IJCAI 2024.

    >>> import torch
    >>> Hill(variant="released")(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.4716)
    """

    paper = PAPER

    def __init__(self, lam: float = LAMBDA, margin: float = 1.0, gamma: float = 2.0, variant: str = "paper") -> None:
        super().__init__()
        self.lam = number("loss hill", "lam", lam, low=1.0)  # below 1 the loss of a probability near 1 is negative
        self.margin = number("loss hill", "margin", margin, low=0.0)
        self.gamma = number("loss hill", "gamma", gamma, low=0.0)
        self.variant = choice("loss hill", "variant", variant, VARIANTS)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        plain = self.variant == "released"
        return hill(logits, labels, self.lam, 0.0 if plain else self.margin, 0.0 if plain else self.gamma)


class SPLC(Loss):
    """Self-paced loss correction from `start_epoch` on (see `functional.splc`); epochs count from 0.

    The default is the formula of its authors' code; `variant="hill"` is how Chen et al., IJCAI 2024, describe it.

    >>> import torch
    >>> SPLC()(torch.zeros(1, 2), torch.tensor([[1, 0]]), epoch=1)
    tensor(0.4376)
    """

    paper = PAPER

    def __init__(
        self,
        tau: float = 0.6,
        margin: float = 1.0,
        gamma: float = 2.0,
        start_epoch: int = 1,
        variant: str = "released",
    ) -> None:
        super().__init__()
        self.tau = number("loss splc", "tau", tau, above=0.0, below=1.0)
        self.margin = number("loss splc", "margin", margin, low=0.0)
        self.gamma = number("loss splc", "gamma", gamma, low=0.0)
        self.start_epoch = whole("loss splc", "start_epoch", start_epoch)
        self.variant = choice("loss splc", "variant", variant, SPLC_VARIANTS)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        correct = epoch >= self.start_epoch
        return splc(logits, labels, self.tau, self.margin, self.gamma, correct, self.variant)

    def late(self) -> list[Late]:
        return [Late("loss splc: no label will be corrected", self.start_epoch, "start_epoch")]


def _hill(z: Tensor, y: Tensor, slope: bool, lam: float, margin: float, gamma: float) -> tuple[Tensor, Tensor | None]:
    present = where_present(z, y)
    return _mixed(z, y, present, present, slope, lam, margin, gamma)


def _splc(
    z: Tensor, y: Tensor, slope: bool, threshold: float, margin: float, gamma: float, hill: bool
) -> tuple[Tensor, Tensor | None]:
    observed = present = where_present(z, y)
    if threshold < math.inf:
        # A known label outweighs every logit.
        present = torch.add(z, y.sign(), alpha=CERTAIN)
        present = torch.gt(present, threshold, out=present)
    lam, shifted = (LAMBDA, present) if hill else (None, observed)
    return _mixed(z, y, present, shifted, slope, lam, margin, gamma)


def _mixed(
    z: Tensor,
    y: Tensor,
    present: Tensor,
    shifted: Tensor,
    slope: bool,
    lam: float | None,
    margin: float,
    gamma: float,
) -> tuple[Tensor, Tensor | None]:
    """Focal margin loss where `present`, cross-entropy where y < 0, and elsewhere Hill, or focal without λ.

    `present` and `shifted` are 0 or 1; the margin applies where `shifted`. With r the logit of a label being as it
    counts and x = σ(−r), every loss is W·M: x^γ·(−log(1−x)) where present, the same with γ = 0 where absent, and
    x²·(λ−x) for Hill. By −r it grows by W·(x + γ (1−x) M) in the first two cases, and by W·(1−x)·(2λ − 3x) for Hill.
    """
    absent = torch.lt(y, 0, out=torch.empty_like(z))
    wrong = torch.addcmul(z, z, present, value=-2)  # −r
    if margin:
        wrong.add_(shifted, alpha=margin)
    x, log_rest = wrong.sigmoid(), softplus(wrong)
    value, weight = log_rest, power(x, gamma)
    if lam is not None:
        known = present + absent
        value = (lam - x).lerp_(log_rest, known)
        weight = weight if gamma == 2 else x.square().lerp_(weight, known)
    weight = torch.maximum(weight, absent)  # which is 1 where absent
    loss = weight * value
    if not slope:
        return loss, None
    rest = wrong.add_(absent, alpha=CERTAIN).neg_().sigmoid_()  # without a part in what is absent
    growth = log_rest.mul_(gamma)
    if lam is not None:
        growth = x.mul(-3).add_(2 * lam).lerp_(growth, known)
        x.mul_(known)
    rising = x.addcmul_(rest, growth).mul_(weight)
    return loss, rising.addcmul_(rising, present, value=-2)
