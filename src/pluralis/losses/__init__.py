"""Losses as small modules, called as `loss(logits, labels, epoch=0, epochs=1)`; the formulas are in `functional`."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn

from pluralis.errors import RecipeError, nearest
from pluralis.labels import Labels
from pluralis.losses import functional
from pluralis.params import number

__all__ = ["AN", "BCE", "EM", "GR", "LOSSES", "Loss", "create_loss", "functional"]


class Loss(nn.Module):
    """A loss over logits [N, C] and labels [N, C] in {+1, 0, -1}; a scalar comes back.

    `paper` is where the formula comes from. `start_bias` is the bias of the head that suits the loss at the start:
    "zero" (p = 1/2) or "log-odds" (p = the share of written labels). `batch_coupled` says that the value of an entry
    depends on other entries of the batch, so that gradients of parts of a batch do not add up to those of the whole.
    """

    paper: ClassVar[str]
    start_bias: ClassVar[str]
    batch_coupled: ClassVar[bool] = False

    def __init__(self) -> None:  # so that the signature of a loss shows its own parameters and nothing else
        super().__init__()

    def start(self, labels: Labels) -> None:
        """What a loss takes from the training labels before the first step, such as class priors."""

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in parameters(type(self)))


class BCE(Loss):
    """Binary cross-entropy of the known labels (see `functional.bce`).

    >>> import torch
    >>> BCE()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = "Durand, Mehrasa, Mori: Learning a Deep ConvNet for Multi-label Classification with Partial Labels, 2019"
    start_bias = "log-odds"
    batch_coupled = True  # the mean runs over the known entries of the batch

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return functional.bce(logits, labels)


class AN(Loss):
    """Assume negative (see `functional.an`).

    >>> import torch
    >>> AN()(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    """

    paper = "Cole et al.: Multi-Label Learning from Single Positive Labels, CVPR 2021"
    start_bias = "zero"

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return functional.an(logits, labels)


class EM(Loss):
    """Entropy maximisation (see `functional.em`); `alpha` is the paper's value for VOC, and 0.1 for COCO.

    >>> import torch
    >>> EM(alpha=1.0)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.)
    """

    paper = "Zhou et al.: Acknowledging the Unknown for Multi-label Learning with Single Positive Labels, ECCV 2022"
    start_bias = "zero"

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        self.alpha = number("loss em", "alpha", alpha, low=0.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return functional.em(logits, labels, alpha=self.alpha)


class GR(Loss):
    """Generalised robust loss (see `functional.gr`) with the linear schedules of its Eqs. 9, 10, 12 and 13:

    w = w0 + (wT − w0)·t/T with t = epoch and T = epochs, and likewise b, μ and σ. The defaults are the paper's for VOC.

    >>> import torch
    >>> loss = GR(wT=10, bT=-8)                                 # for COCO
    >>> loss.at(epoch=4, epochs=8)
    {'w': 5.0, 'b': -5.0, 'mu': 0.65, 'sigma': 1.25}
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]), epoch=4, epochs=8).item() > 0
    True
    """

    paper = "Chen et al.: Boosting Single Positive Multi-label Classification with Generalized Robust Loss, IJCAI 2024"
    start_bias = "log-odds"

    def __init__(
        self,
        w0: float = 0.0,
        b0: float = -2.0,
        wT: float = 2.0,
        bT: float = -2.0,
        mu0: float = 0.5,
        sigma0: float = 2.0,
        muT: float = 0.8,
        sigmaT: float = 0.5,
        q1: float = 0.01,
        q2: float = 0.01,
        q3: float = 1.0,
    ) -> None:
        super().__init__()
        self.w0, self.wT = number("loss gr", "w0", w0), number("loss gr", "wT", wT)
        self.b0, self.bT = number("loss gr", "b0", b0), number("loss gr", "bT", bT)
        self.mu0, self.muT = number("loss gr", "mu0", mu0), number("loss gr", "muT", muT)
        self.sigma0 = number("loss gr", "sigma0", sigma0, above=0.0)
        self.sigmaT = number("loss gr", "sigmaT", sigmaT, above=0.0)
        self.q1 = number("loss gr", "q1", q1, low=0.0)
        self.q2 = number("loss gr", "q2", q2, low=0.0)
        self.q3 = number("loss gr", "q3", q3, low=0.0)

    def at(self, epoch: int, epochs: int) -> dict[str, float]:
        """The scheduled parameters at an epoch."""
        part = min(epoch / max(epochs, 1), 1.0)
        ends = {
            "w": (self.w0, self.wT),
            "b": (self.b0, self.bT),
            "mu": (self.mu0, self.muT),
            "sigma": (self.sigma0, self.sigmaT),
        }
        return {name: start + (end - start) * part for name, (start, end) in ends.items()}

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        now = self.at(epoch, epochs)
        return functional.gr(
            logits, labels, now["w"], now["b"], now["mu"], now["sigma"], self.q1, self.q2, self.q3, reduction="mean"
        )


LOSSES: dict[str, type[Loss]] = {"bce": BCE, "an": AN, "em": EM, "gr": GR}


def parameters(loss: type[Loss]) -> dict[str, Any]:
    """Names and defaults of a loss's parameters."""
    return {name: p.default for name, p in inspect.signature(loss).parameters.items()}


def create_loss(name: str, **params: float) -> Loss:
    """The loss of that name with its parameters.

    >>> create_loss("em", alpha=0.1)
    EM(alpha=0.1)
    """
    if name not in LOSSES:
        raise RecipeError(f"loss: unknown name {name!r}; {nearest(name, list(LOSSES))}")
    known = list(parameters(LOSSES[name]))
    for param in params:
        if param not in known:
            raise RecipeError(f"loss {name}: unknown parameter {param!r}; {nearest(param, known)}")
    return LOSSES[name](**params)
