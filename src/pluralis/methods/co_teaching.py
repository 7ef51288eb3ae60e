"""Two networks that choose whole rows to learn from: co-teaching, co-teaching+, JoCoR and decoupling.

They were made for one label an image. Here the loss of a row is its mean binary cross-entropy, with every label that
is not known to be present counted as absent (verified absent or not: the choice is between rows), as the comparisons
of Lyu et al., AAAI 2025, have it; and two networks disagree on a row if the decisions p > 1/2 differ for any class.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pluralis.losses.base import Late
from pluralis.losses.functional import an
from pluralis.method import Batch, Clock, Setup
from pluralis.methods.pair import Pair, lowest, reserved, share
from pluralis.params import number, whole


class CoTeaching(Pair):
    """Co-teaching: each network learns from the rows in which its peer has the smallest losses.

    L^f = mean of ℓ^f over the R(e)·B rows of the batch with the smallest ℓ^g, L^g with f and g exchanged, and
    R(e) = 1 − min(τ·e/T_k, τ) after e epochs. Han et al., NeurIPS 2018, Algorithm 1. The number of rows is rounded
    down, but is at least one. Verified absent labels count as absent, as unknown ones do.

    forget    τ; the paper sets it to the share of wrongly labelled rows, of which 0.2 is its mildest case
    ramp      T_k, the epochs over which the share forgotten grows from 0 to τ

    >>> from pluralis.models import create_model
    >>> method = CoTeaching(Setup(lambda: create_model("tiny", 3), 3))
    >>> batch = Batch((torch.zeros(2, 3, 24, 24),), torch.tensor([[1, 0, 0], [0, 1, 0]]), torch.arange(2))
    >>> sorted(method(batch, Clock()))
    ['f', 'g']
    """

    paper = "Han et al.: Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels, NeurIPS 2018"
    owner: ClassVar[str] = "method co-teaching"  # in messages about parameters

    def __init__(self, setup: Setup, forget: float = 0.2, ramp: int = 10) -> None:
        super().__init__(setup)
        self.forget = number(self.owner, "forget", forget, low=0.0, below=1.0)
        self.ramp = whole(self.owner, "ramp", ramp, low=1)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        f, g = self.logits(batch)
        loss_f, loss_g = row_losses(f, batch.labels), row_losses(g, batch.labels)
        rows, rate = self.candidates(f, g, clock), reserved(self.forget, self.ramp, clock.epoch)
        return {
            "f": mean_over(loss_f, small_loss(loss_g, rows, rate)),
            "g": mean_over(loss_g, small_loss(loss_f, rows, rate)),
        }

    def late(self) -> list[Late]:
        return [Late(f"{self.owner}: no image will be left out", 1)]

    def candidates(self, f: Tensor, g: Tensor, clock: Clock) -> Tensor:
        """The rows [B] to choose among: here all."""
        return torch.ones(len(f), dtype=torch.bool, device=f.device)


class CoTeachingPlus(CoTeaching):
    """Co-teaching+: co-teaching among the rows on which the two networks disagree, after a warm-up.

    As co-teaching, with the rows of the batch replaced by those in which the two decisions p > 1/2 differ for at
    least one class, from epoch `warmup` (counted from 0) on. Yu et al., ICML 2019, Algorithm 1. The paper says nothing
    of a batch without such rows, and the released code uses all of its rows in early steps and none later; here such
    a batch makes one step of co-teaching. Verified absent labels count as absent, as unknown ones do.

    forget    τ, the share of wrongly labelled rows
    ramp      E_k, the epochs over which the share forgotten grows from 0 to τ
    warmup    epochs of co-teaching at the start; the released code has 0 for MNIST, 5 for CIFAR-100, 20 for CIFAR-10

    >>> from pluralis.models import create_model
    >>> CoTeachingPlus(Setup(lambda: create_model("tiny", 3), 3), warmup=0).warmup
    0
    """

    paper = "Yu et al.: How does Disagreement Help Generalization against Label Corruption?, ICML 2019"
    owner = "method co-teaching+"

    def __init__(self, setup: Setup, forget: float = 0.2, ramp: int = 10, warmup: int = 5) -> None:
        super().__init__(setup, forget, ramp)
        self.warmup = whole(self.owner, "warmup", warmup)

    def late(self) -> list[Late]:
        return [
            Late(f"{self.owner}: images will not be chosen by disagreement", self.warmup, "warmup"),
            *super().late(),
        ]

    def candidates(self, f: Tensor, g: Tensor, clock: Clock) -> Tensor:
        if clock.epoch < self.warmup:
            return super().candidates(f, g, clock)
        differ = disagree(f, g)
        return differ | ~differ.any()


class JoCoR(Pair):
    """JoCoR: one loss for both networks, which also asks them to agree, over the rows in which it is smallest.

    ℓ = (1 − λ)(ℓ^f + ℓ^g) + λ(KL(p^f‖p^g) + KL(p^g‖p^f)), L = mean of ℓ over the R(e)·B rows with the smallest ℓ, and
    R(e) = 1 − min(τ·e/T_k, τ). Wei et al., CVPR 2020, Eqs. 1 to 5. For labels of their own instead of one label an
    image, the divergence is that of each label's two outcomes, averaged over the classes as the cross-entropy is. The
    number of rows is rounded down, but is at least one. Verified absent labels count as absent, as unknown ones do.

    forget    τ, the share of wrongly labelled rows
    ramp      T_k, the epochs over which the share forgotten grows from 0 to τ
    lam       λ; the authors use 0.9 for CIFAR-10, 0.85 for CIFAR-100, and advise 0.5 to 0.9

    >>> from pluralis.models import create_model
    >>> method = JoCoR(Setup(lambda: create_model("tiny", 3), 3))
    >>> batch = Batch((torch.zeros(2, 3, 24, 24),), torch.tensor([[1, 0, 0], [0, 1, 0]]), torch.arange(2))
    >>> sorted(method(batch, Clock()))
    ['agreement', 'fit']
    """

    paper = "Wei et al.: Combating Noisy Labels by Agreement: A Joint Training Method with Co-Regularization, CVPR 2020"

    def __init__(self, setup: Setup, forget: float = 0.2, ramp: int = 10, lam: float = 0.85) -> None:
        super().__init__(setup)
        self.forget = number("method jocor", "forget", forget, low=0.0, below=1.0)
        self.ramp = whole("method jocor", "ramp", ramp, low=1)
        self.lam = number("method jocor", "lam", lam, low=0.0, high=1.0)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        f, g = self.logits(batch)
        fit = (1 - self.lam) * (row_losses(f, batch.labels) + row_losses(g, batch.labels))
        agreement = self.lam * divergence(f, g).mean(1)
        every = torch.ones(len(f), dtype=torch.bool, device=f.device)
        kept = small_loss(fit + agreement, every, reserved(self.forget, self.ramp, clock.epoch))
        return {"fit": mean_over(fit, kept), "agreement": mean_over(agreement, kept)}

    def late(self) -> list[Late]:
        return [Late("method jocor: no image will be left out", 1)]


class Decoupling(Pair):
    """Decoupling: both networks learn from the rows on which they disagree, and from nothing else.

    L^f = Σ_D ℓ^f / max(|D|, B/10), D the rows in which the two decisions p > 1/2 differ for at least one class, and the
    same for g. Malach and Shalev-Shwartz, NeurIPS 2017, Algorithm 1; the bound below the divisor, so that few rows make
    a small step, is that of the released code. Without any such row the loss and its gradient are 0. Verified absent
    labels count as absent, as unknown ones do.

    warmup    epochs at the start in which all rows count as disagreeing

    >>> from pluralis.models import create_model
    >>> Decoupling(Setup(lambda: create_model("tiny", 3), 3)).warmup
    0
    """

    paper = "Malach, Shalev-Shwartz: Decoupling 'when to update' from 'how to update', NeurIPS 2017"

    def __init__(self, setup: Setup, warmup: int = 0) -> None:
        super().__init__(setup)
        self.warmup = whole("method decoupling", "warmup", warmup)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        f, g = self.logits(batch)
        rows = disagree(f, g) | (clock.epoch < self.warmup)
        return {
            name: mean_over(row_losses(z, batch.labels), rows, least=0.1 * len(f)) for name, z in (("f", f), ("g", g))
        }

    def late(self) -> list[Late]:
        return [Late("method decoupling: images will not be chosen by disagreement", self.warmup, "warmup")]


def row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the classes of the cross-entropy that assumes negative: [B]."""
    return an(logits, labels, reduction="none").mean(1)


def small_loss(losses: Tensor, rows: Tensor, rate: float) -> Tensor:
    """The share `rate` of the marked rows [B], but at least one, with the smallest losses; no gradient."""
    return lowest(losses.detach(), rows, share(rows.sum(), rate).clamp(min=1))


def mean_over(losses: Tensor, kept: Tensor, least: float = 1.0) -> Tensor:
    """Sum over the kept rows by their number, or by `least` if that is more; of none it is 0."""
    return (losses * kept).sum() / kept.sum().clamp(min=least)


@torch.no_grad()
def disagree(f: Tensor, g: Tensor) -> Tensor:
    """Rows [B] in which p > 1/2 for one network and not for the other, for any class."""
    return ((f > 0) != (g > 0)).any(1)


def divergence(f: Tensor, g: Tensor) -> Tensor:
    """KL(p^f‖p^g) + KL(p^g‖p^f) of each label's two outcomes: (p^f − p^g)(z^f − z^g).

    >>> divergence(torch.tensor([[0.0, 1e4]]), torch.tensor([[0.0, -1e4]]))
    tensor([[    0., 20000.]])
    """
    side = torch.where(f + g > 0, -1.0, 1.0)  # the difference of the two smaller of p and 1−p keeps its digits
    return (torch.sigmoid(f * side) - torch.sigmoid(g * side)) * side * (f - g)
