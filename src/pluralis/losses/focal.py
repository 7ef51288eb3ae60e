"""Losses that give less weight to labels that are easy: focal loss, and asymmetric loss for negatives apart."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from pluralis.losses.base import VARIANTS, Loss
from pluralis.losses.kernels import LOG2E, log_sigmoid, power
from pluralis.losses.pointwise import pointwise
from pluralis.params import choice, number

_TINY = 1e-30  # makes 0/0 into 1 where a probability has underflowed


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0, alpha: float = 0.75, reduction: str = "mean") -> Tensor:
    """Focal loss: cross-entropy times (1 − p_t)^γ, p_t being the probability of the label as it is or is assumed.

    L = −(1/NC) Σ α_t (1−p_t)^γ log p_t, p_t = p and α_t = α where y = 1, p_t = 1−p and α_t = 1−α elsewhere.
    Lin et al., ICCV 2017, Eq. 5, as used by Zhou et al., ECCV 2022, Appendix B.2. It makes no difference between
    unknown and verified absent labels.

    >>> import torch
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

    >>> import torch
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

    >>> import torch
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

    >>> import torch
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
    present, sign, right = _sides(z, y)
    gamma = gammas[0] if gammas[0] == gammas[1] else present.mul_(gammas[0] - gammas[1]).add_(gammas[1])
    x, log_rest = right.neg().sigmoid_(), log_sigmoid(right)
    factor = (log_rest - right).mul_(gamma).mul_(LOG2E).exp2_()  # log x = log(1−x) − r
    loss = (factor * log_rest).neg_()
    if not slope:
        return loss, None
    # By r: the loss falls by x^γ·x through the logarithm and by −γ x^γ (1−x) log(1−x) through the weight.
    falling = x if frozen or not any(gammas) else x.addcmul_(right.sigmoid_().mul_(gamma), log_rest, value=-1)
    return loss, falling.mul_(factor).mul_(sign).neg_()


def _with_margin(
    z: Tensor, y: Tensor, slope: bool, gammas: tuple[float, float], frozen: bool, margin: float
) -> tuple[Tensor, Tensor | None]:
    """As `_asymmetric`, with x = max(p − m, 0) for labels that are not present."""
    present, sign, right = _sides(z, y)
    x, log_rest = right.neg().sigmoid_(), log_sigmoid(right)
    rest = right.sigmoid_().add_(_TINY)
    chain = x * sign  # minus σ(−r)·∂r/∂z
    shift = present.mul(-margin).add_(margin)
    x = x.sub_(shift).clamp_(min=0)
    if gammas[1] == 0:
        chain.mul_(x.sign())  # nothing is left of what the margin has eaten up; else x^γ sees to it
    shifted = shift.add_(rest)
    share = rest / shifted  # of 1−x without and with the margin
    log_rest = shifted.clamp_(max=1.0).log2_().div_(LOG2E).lerp_(log_rest, present)
    factor = power(x, gammas[1])
    if gammas[0] != gammas[1]:
        factor = factor.lerp(power(x, gammas[0]), present)
    loss = (factor * log_rest).neg_()
    if not slope:
        return loss, None
    falling = share.mul_(factor)
    if not frozen and any(gammas):
        gamma = present.mul_(gammas[0] - gammas[1]).add_(gammas[1])
        growth = gamma.mul_(factor).div_(x.clamp_(min=_TINY))
        falling.addcmul_(rest.mul_(growth), log_rest, value=-1)
    return loss, chain.mul_(falling).neg_()


def _focal(z: Tensor, y: Tensor, slope: bool, gamma: float, alpha: float) -> tuple[Tensor, Tensor | None]:
    loss, derivative = _asymmetric(z, y, slope, (gamma, gamma))
    weight = y.sign().clamp_(min=0).to(z.dtype).mul_(2 * alpha - 1).add_(1 - alpha)
    return loss.mul_(weight), None if derivative is None else derivative.mul_(weight)


def _sides(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """1 where present and 0 elsewhere, the side ±1 that each label counts for, and r, the logit of that side."""
    present = y.sign().clamp_(min=0).to(z.dtype)
    sign = present.mul(2).sub_(1)
    return present, sign, z * sign
