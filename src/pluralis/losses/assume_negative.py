"""Losses that count unknown labels as absent, with less weight or with softened targets."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from pluralis.losses.base import VARIANTS, Loss
from pluralis.losses.kernels import log_sigmoid
from pluralis.losses.pointwise import pointwise
from pluralis.params import choice, number

COLE = "Cole et al.: Multi-Label Learning from Single Positive Labels, CVPR 2021"
ZHOU = "Zhou et al.: Acknowledging the Unknown for Multi-label Learning with Single Positive Labels, ECCV 2022"


def an(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Assume negative: every label that is not known to be present counts as absent.

    L = −(1/NC) Σ [1(y=1) log p + 1(y≠1) log(1−p)]. Cole et al., CVPR 2021; Zhou et al., ECCV 2022, Eq. 1.
    A verified absent label counts as an unknown one does: both take log(1−p) with weight 1.

    >>> import torch
    >>> z = torch.tensor([[0.0, 0.0, -20.0]])
    >>> an(z, torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[6.9315e-01, 6.9315e-01, 2.0612e-09]])
    """
    return pointwise(_an, logits, labels, reduction)


def dw(logits: Tensor, labels: Tensor, weight: float = 0.1, reduction: str = "mean") -> Tensor:
    """Down-weighting: assume negative, with a weight w < 1 for what is only assumed.

    L = −(1/NC) Σ [1(y=1) log p + 1(y=0) w log(1−p) + 1(y=−1) log(1−p)]. Zhou et al., ECCV 2022, Appendix B.2;
    verified absent labels, which the paper does not have, keep their full weight.

    >>> import torch
    >>> dw(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), weight=0.5, reduction="none")
    tensor([[0.6931, 0.3466, 0.6931]])
    """
    return pointwise(partial(_weighted, weight=weight), logits, labels, reduction)


def wan(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Weak assume negative: `dw` with w = 1/(C−1), so that all assumed labels of an image weigh as much as one.

    Cole et al., CVPR 2021. C is the last dimension of the logits; a single class has w = 1. Verified absent labels,
    which the paper does not have, keep their full weight.

    >>> import torch
    >>> wan(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.3466, 0.6931]])
    """
    return dw(logits, labels, 1 / max(logits.shape[-1] - 1, 1) if logits.dim() else 1.0, reduction)


def an_ls(logits: Tensor, labels: Tensor, epsilon: float = 0.1, reduction: str = "mean") -> Tensor:
    """Assume negative with label smoothing: targets are 1 − ε/2 for present and ε/2 for all other labels.

    L = −(1/NC) Σ [t log p + (1−t) log(1−p)]. Cole et al., CVPR 2021. Verified absent labels are smoothed as the
    present ones are.

    >>> import torch
    >>> an_ls(torch.ones(1, 2), torch.tensor([[1, 0]]), reduction="none")
    tensor([[0.3633, 1.2633]])
    """
    return pointwise(partial(_smoothed, known=epsilon / 2, unknown=epsilon / 2), logits, labels, reduction)


def n_ls(logits: Tensor, labels: Tensor, epsilon: float = 0.3, reduction: str = "mean") -> Tensor:
    """Assume negative with smoothing of the assumed labels alone: their target is ε instead of 0.

    L = −(1/NC) Σ [1(y=1) log p + 1(y=0) (ε log p + (1−ε) log(1−p)) + 1(y=−1) log(1−p)].
    Zhou et al., ECCV 2022, Appendix B.2; verified absent labels, which the paper does not have, are not smoothed.

    >>> import torch
    >>> n_ls(torch.ones(1, 2), torch.tensor([[1, 0]]), reduction="none")
    tensor([[0.3133, 1.0133]])
    """
    return pointwise(partial(_smoothed, known=0.0, unknown=epsilon), logits, labels, reduction)


class AN(Loss):
    """Assume negative (see `functional.an`); verified absent labels count as unknown ones do.

    >>> import torch
    >>> AN()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = COLE

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return an(logits, labels)


class DW(Loss):
    """Assume negative, with less weight for what is assumed (see `functional.dw`); the paper has 0.02 for CUB.

    >>> import torch
    >>> DW(weight=1.0)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = ZHOU

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__()
        self.weight = number("loss dw", "weight", weight, low=0.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return dw(logits, labels, self.weight)


class WAN(Loss):
    """Weak assume negative: unknown labels weigh 1/(C−1), verified absent ones 1 (see `functional.wan`).

    >>> import torch
    >>> WAN()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = COLE

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return wan(logits, labels)


class ANLS(Loss):
    """Assume negative with label smoothing (see `functional.an_ls`).

    `variant="released"` moves each target by ε, as the published code does, where the paper moves it by ε/2.

    >>> import torch
    >>> ANLS(epsilon=0.2)(torch.ones(1, 2), torch.tensor([[1, 0]])) == ANLS(0.1, variant="released")(
    ...     torch.ones(1, 2), torch.tensor([[1, 0]]))
    tensor(True)
    """

    paper = COLE

    def __init__(self, epsilon: float = 0.1, variant: str = "paper") -> None:
        super().__init__()
        self.epsilon = number("loss an-ls", "epsilon", epsilon, low=0.0, below=1.0)
        self.variant = choice("loss an-ls", "variant", variant, VARIANTS)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return an_ls(logits, labels, self.epsilon * (2 if self.variant == "released" else 1))


class NLS(Loss):
    """Assume negative, smoothing only what is assumed (see `functional.n_ls`); the paper has 0.1 beyond VOC.

    >>> import torch
    >>> NLS()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = ZHOU

    def __init__(self, epsilon: float = 0.3) -> None:
        super().__init__()
        self.epsilon = number("loss n-ls", "epsilon", epsilon, low=0.0, below=1.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return n_ls(logits, labels, self.epsilon)


def _assumed(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """+1 where present and −1 elsewhere, and the logit of that being right."""
    sign = y.sign().clamp_(min=0).to(z.dtype).mul_(2).sub_(1)
    return sign, z * sign


def _an(z: Tensor, y: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
    sign, right = _assumed(z, y)
    loss = log_sigmoid(right).neg_()
    return loss, right.neg_().sigmoid_().mul_(sign).neg_() if slope else None


def _weighted(z: Tensor, y: Tensor, slope: bool, weight: float) -> tuple[Tensor, Tensor | None]:
    sign, right = _assumed(z, y)
    scale = y.sign().to(z.dtype).abs_().mul_(weight - 1).sub_(weight)  # minus the weight
    loss = log_sigmoid(right).mul_(scale)
    return loss, right.neg_().sigmoid_().mul_(sign).mul_(scale) if slope else None


def _smoothed(z: Tensor, y: Tensor, slope: bool, known: float, unknown: float) -> tuple[Tensor, Tensor | None]:
    """−log σ(r) + s·r with r = ±z: the cross-entropy when a share s of the target is on the other side."""
    sign, right = _assumed(z, y)
    share: Tensor | float = unknown
    if known != unknown:
        share = y.sign().to(z.dtype).abs_().mul_(known - unknown).add_(unknown)
    loss = (right * share).sub_(log_sigmoid(right))
    return loss, right.neg_().sigmoid_().sub_(share).mul_(sign).neg_() if slope else None
