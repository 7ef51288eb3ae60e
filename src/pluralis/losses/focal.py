"""Losses that give less weight to labels that are easy: focal loss, and asymmetric loss for negatives apart."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses.base import VARIANTS, Loss
from pluralis.losses.kernels import power, softplus, where_present
from pluralis.losses.pointwise import pointwise
from pluralis.params import choice, number

_TINY = 1e-30  # a probability whose powers are finite, in the place of 0


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0, alpha: float = 0.75, reduction: str = "mean") -> Tensor:
    """Focal loss: cross-entropy times (1 − p_t)^γ, p_t being the probability of the label as it is or is assumed.

    L = −(1/NC) Σ α_t (1−p_t)^γ log p_t, p_t = p and α_t = α where y = 1, p_t = 1−p and α_t = 1−α elsewhere.
    Lin et al., ICCV 2017, Eq. 5, as used by Zhou et al., ECCV 2022, Appendix B.2. It makes no difference between
    unknown and verified absent labels.

    >>> focal(torch.zeros(1, 2), torch.tensor([[1, 0]]), gamma=1.0, reduction="none")
    tensor([[0.2599, 0.0866]])
    """
    return pointwise(partial(_focal, gamma=gamma, alpha=alpha), logits, labels, reduction)


def asl(
    logits: Tensor,
    labels: Tensor,
    gamma_pos: float = 0.0,
    gamma_neg: float = 2.0,
    margin: float = 0.2,
    variant: str = "paper",
    reduction: str = "mean",
) -> Tensor:
    """Asymmetric loss: a focal weight of its own for each side, and a margin below which negatives count as learnt.

    L = −(1/NC) Σ [1(y=1) (1−p)^{γ+} log p + 1(y≠1) p_m^{γ−} log(1−p_m)], p_m = max(p − m, 0).
    Ridnik et al., ICCV 2021, who take the sum; parameters of Zhou et al., ECCV 2022, Appendix B.2 (γ− = 1 and
    m = 0 for CUB). `variant="released"` takes no gradient through the focal weights, as the published code does. It
    makes no difference between unknown and verified absent labels.

    >>> asl(torch.zeros(1, 2), torch.tensor([[1, 0]]), margin=0.25, reduction="none")
    tensor([[0.6931, 0.0180]])
    """
    gammas = (gamma_pos, gamma_neg)
    kernel = partial(_asymmetric, gammas=gammas, frozen=variant == "released")
    if margin:
        kernel = partial(_with_margin, gammas=gammas, frozen=variant == "released", margin=margin)
    return pointwise(kernel, logits, labels, reduction)


class Focal(Loss):
    """Focal loss (see `functional.focal`).

    >>> Focal(gamma=0.0, alpha=0.5)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.3466)
    """

    paper = "Lin et al.: Focal Loss for Dense Object Detection, ICCV 2017"

    def __init__(self, gamma: float = 2.0, alpha: float = 0.75) -> None:
        super().__init__()
        self.gamma = number("loss focal", "gamma", gamma, low=0.0)
        self.alpha = number("loss focal", "alpha", alpha, low=0.0, high=1.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return focal(logits, labels, self.gamma, self.alpha)


class ASL(Loss):
    """Asymmetric loss (see `functional.asl`).

    >>> ASL(0.0, 0.0, 0.0)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = "Ridnik et al.: Asymmetric Loss for Multi-Label Classification, ICCV 2021"

    def __init__(
        self, gamma_pos: float = 0.0, gamma_neg: float = 2.0, margin: float = 0.2, variant: str = "paper"
    ) -> None:
        super().__init__()
        self.gamma_pos = number("loss asl", "gamma_pos", gamma_pos, low=0.0)
        self.gamma_neg = number("loss asl", "gamma_neg", gamma_neg, low=0.0)
        self.margin = number("loss asl", "margin", margin, low=0.0, below=1.0)
        self.variant = choice("loss asl", "variant", variant, VARIANTS)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return asl(logits, labels, self.gamma_pos, self.gamma_neg, self.margin, self.variant)


def _asymmetric(
    z: Tensor, y: Tensor, slope: bool, gammas: tuple[float, float], frozen: bool = False
) -> tuple[Tensor, Tensor | None]:
    """−x^γ log(1−x) with x = 1−p for present labels and x = p for others.

    `gammas` are those of present and of other labels; `frozen` takes no gradient through x^γ.
    """
    present = where_present(z, y)
    wrong = torch.addcmul(z, z, present, value=-2)  # the logit of x
    x, log_rest = wrong.sigmoid(), softplus(wrong)
    factor = power(x, gammas[1])
    if gammas[0] != gammas[1]:
        factor = factor.lerp(power(x, gammas[0]), present)
    loss = factor * log_rest
    if not slope:
        return loss, None
    # By the logit of x: x^γ·x through the logarithm and −γ x^γ (1−x) log(1−x) through the weight.
    rising = x * factor
    if any(gammas) and not frozen:
        through = (1 - x).mul_(loss)
        if gammas[0] == gammas[1]:
            rising.add_(through, alpha=gammas[0])
        else:
            rising.addcmul_(through, present.mul(gammas[0] - gammas[1]).add_(gammas[1]))
    return loss, rising.addcmul_(rising, present, value=-2)


def _with_margin(
    z: Tensor, y: Tensor, slope: bool, gammas: tuple[float, float], frozen: bool, margin: float
) -> tuple[Tensor, Tensor | None]:
    """As `_asymmetric`, with x = max(p − m, 0) for labels that are not present."""
    present, other = where_present(z, y), z.neg()
    p, log_p, rest = z.sigmoid(), softplus(other), other.sigmoid_()  # p, −log p and 1−p
    factor = power(rest, gammas[0])
    loss_up = factor * log_p if gammas[0] else log_p

    gamma, x = gammas[1], F.softshrink(p, margin)
    log_rest = x.neg().log1p_()
    below = power(x if gamma >= 1 else x.clamp(min=_TINY), gamma - 1)  # x^γ is this times x, also where x = 0
    loss = (below * x).mul_(log_rest).neg_().lerp_(loss_up, present)
    if not slope:
        return loss, None
    # By z: p (1−p) x^{γ−1} [x/(1−x) − γ log(1−x)], the second of them through the weight; 1−x = 1−p+m where x > 0.
    rising = x / (rest + margin)
    if gamma and not frozen:
        rising.sub_(log_rest, alpha=gamma)
    if gamma != 1:
        rising.mul_(below)
    rising.mul_(p).mul_(rest)
    falling = rest.mul_(factor) if gammas[0] else rest
    if gammas[0] and not frozen:
        falling.addcmul_(p, loss_up, value=gammas[0])
    return loss, rising.lerp_(falling.neg_(), present)


def _focal(z: Tensor, y: Tensor, slope: bool, gamma: float, alpha: float) -> tuple[Tensor, Tensor | None]:
    loss, derivative = _asymmetric(z, y, slope, (gamma, gamma))
    weight = where_present(z, y).mul_(2 * alpha - 1).add_(1 - alpha)
    return loss.mul_(weight), None if derivative is None else derivative.mul_(weight)
