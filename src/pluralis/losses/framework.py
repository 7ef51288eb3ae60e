"""One framework for losses that guess the unknown labels from the prediction itself (Chen et al., IJCAI 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses.pointwise import check_inputs, reduce

Part = Callable[[Tensor], Tensor]
"""A function of the logits, entry by entry."""


@dataclass(frozen=True)
class Framework:
    """Exchangeable parts: a pseudo-label k̂, a weight v and three losses.

    L = (1/NC) Σ  L1                              y = +1
                  v·[k̂·L2 + (1−k̂)·L3]             y = 0
                  L0                              y = −1 (not in the paper)
    Chen et al., IJCAI 2024, Eqs. 4-5; the constructors are the columns of Table 1, with the signs of the equations in
    Appendix B where those of the table differ. All parts are functions of the logits z, with p = σ(z); k̂ and v see z
    without its gradient. Verified absent labels take L0 = −log(1−p), or in GR its L1 of 1−p.

    This is for putting losses together and for checking them. It runs through autograd and takes several times as long
    as the functions in `functional`, which are the same losses.

    >>> loss = Framework(k=lambda z: z.sigmoid().square(), v=torch.ones_like, loss1=positive, loss2=positive,
    ...                  loss3=negative)
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.6931)
    >>> Framework.en(tau=0.4)(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor(0.3466)
    """

    k: Part
    v: Part
    loss1: Part
    loss2: Part
    loss3: Part
    loss0: Part | None = None  # −log(1−p)

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        check_inputs(logits, labels, reduction)
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        k, v = self.k(z.detach()), self.v(z.detach())
        unknown = v * (k * self.loss2(z) + (1 - k) * self.loss3(z))
        absent = (self.loss0 or negative)(z)
        return reduce(torch.where(labels > 0, self.loss1(z), torch.where(labels < 0, absent, unknown)), reduction)

    @classmethod
    def en(cls, tau: float | Tensor) -> Framework:
        """Expected negatives: unknown labels with p ≤ τ are absent, the others are left out.

        `tau` may be one for each class. Verelst et al., WACV 2023, who set it so that the expected number is absent.
        """
        below = partial(_below, tau=tau)
        return cls(k=torch.zeros_like, v=below, loss1=positive, loss2=positive, loss3=negative)

    @classmethod
    def em(cls, alpha: float = 0.2, beta: float = 0.02, tau: float | Tensor = 0.0) -> Framework:
        """Entropy maximisation with asymmetric pseudo-labels: unknown labels with p ≤ τ are absent with soft label p.

        v = β and L3 = −p̂ log p − (1−p̂) log(1−p) there, p̂ = p without gradient; v = α and L2 = −H(p) elsewhere. With
        τ = 0 it is entropy maximisation alone. Zhou et al., ECCV 2022, Eqs. 4, 7, 8; there a ranking gives τ.
        """
        below = partial(_below, tau=tau)
        return cls(
            k=lambda z: 1 - below(z),
            v=lambda z: alpha + (beta - alpha) * below(z),
            loss1=positive,
            loss2=_negative_entropy,
            loss3=lambda z: F.softplus(z) - z.detach().sigmoid() * z,
        )

    @classmethod
    def hill(cls, lam: float = 1.5) -> Framework:
        """Hill: no pseudo-labels, and a loss (λ−p)p² for unknown labels. Zhang et al., 2021."""
        down = partial(_hill, lam=lam)
        return cls(k=torch.zeros_like, v=torch.ones_like, loss1=positive, loss2=positive, loss3=down)

    @classmethod
    def splc(cls, tau: float = 0.6, margin: float = 1.0, gamma: float = 2.0, lam: float = 1.5) -> Framework:
        """Focal margin + SPLC: unknown labels with p > τ are present, those below take Hill.

        It is `functional.splc` with `variant="hill"`; the authors of SPLC (Zhang et al., 2021) have focal loss there.
        """
        up = partial(_focal_margin, margin=margin, gamma=gamma)
        down = partial(_hill, lam=lam)
        return cls(lambda z: 1 - _below(z, tau), torch.ones_like, loss1=up, loss2=up, loss3=down)

    @classmethod
    def gr(
        cls,
        w: float | Tensor = 0.0,
        b: float | Tensor = -2.0,
        mu: float | Tensor = 0.5,
        sigma: float | Tensor = 2.0,
        q1: float = 0.01,
        q2: float = 0.01,
        q3: float = 1.0,
    ) -> Framework:
        """Generalised robust loss; w, b, μ and σ may be tensors with a gradient. Eqs. 7, 11 and 14."""
        return cls(
            k=lambda z: torch.sigmoid(w * z.sigmoid() + b),
            v=lambda z: torch.exp(-((z.sigmoid() - mu) ** 2) / (2 * sigma**2)),
            loss1=partial(robust, q=q1),
            loss2=partial(robust, q=q2),
            loss3=partial(_robust_absent, q=q3),
            loss0=partial(_robust_absent, q=q1),
        )


def positive(z: Tensor) -> Tensor:
    """−log p."""
    return F.softplus(-z)


def negative(z: Tensor) -> Tensor:
    """−log(1−p)."""
    return F.softplus(z)


def robust(z: Tensor, q: float) -> Tensor:
    """(1 − p^q)/q, and its limit −log p for q = 0."""
    return positive(z) if q == 0 else -torch.expm1(q * F.logsigmoid(z)) / q


def _robust_absent(z: Tensor, q: float) -> Tensor:
    return robust(-z, q)


def _negative_entropy(z: Tensor) -> Tensor:
    p = z.sigmoid()
    return p * F.logsigmoid(z) + (1 - p) * F.logsigmoid(-z)


def _hill(z: Tensor, lam: float) -> Tensor:
    p = z.sigmoid()
    return (lam - p) * p * p


def _focal_margin(z: Tensor, margin: float, gamma: float) -> Tensor:
    shifted = z - margin
    return torch.sigmoid(-shifted) ** gamma * positive(shifted)


def _below(z: Tensor, tau: float | Tensor) -> Tensor:
    """1 where p ≤ τ and 0 elsewhere."""
    return (z.sigmoid() <= tau).to(z.dtype)
