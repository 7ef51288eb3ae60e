"""CLS: two networks that choose the absent labels to learn from, each for the other and for itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pluralis.errors import RecipeError
from pluralis.losses.base import Late
from pluralis.losses.functional import an
from pluralis.method import Batch, Clock, Setup
from pluralis.methods.pair import Pair, reserved, share_of_rows
from pluralis.params import choice, flag, number, whole

REMOVES = ("both", "high-loss", "low-loss")


class Selection(NamedTuple):
    """Two bool tensors [..., B, C] that do not overlap."""

    kept: Tensor  # the negatives to learn from
    suspects: Tensor  # the unknown labels that the peer takes for present


class CLS(Pair):
    """Co-label selection: the peer removes suspected false negatives, each network itself the uninformative ones.

    With Y_N the labels of a batch that are not known to be present, ℓ the binary cross-entropy that counts them as
    absent, and e the epochs finished,

        Y_N^f  = the R_h(e)·|Y_N| labels of Y_N with the smallest ℓ under the peer g        (Eqs. 1, 2)
        Y_N^f' = the R_l(e)·|Y_N^f| labels of Y_N^f with the largest ℓ under f itself       (Eqs. 3, 4)
        L^f    = 1/(B·C) Σ ℓ over Y_N^f' and all labels known to be present                 (Eqs. 5 to 8)
        R(e)   = 1 − min(τ·e/ramp, τ)                                                       (Algorithm 1)

    and the same for g with f and g exchanged; numbers are rounded down. Selecting has no gradient. Lyu, Sun, Deng,
    Feng, AAAI 2025. The paper divides by B only; with B·C, tau_h = tau_l = 0 is two networks that assume negative.

    tau_h     share of false negatives: 0.002, 0.003, 0.005, 0.005 for VOC2007 with 75 %, 50 %, 25 % of the positives
              and with one, 0.005, 0.010, 0.012, 0.012 for COCO and 0.006, 0.012, 0.020, 0.020 for NUS-WIDE
    tau_l     share of uninformative negatives: 0.02 for VOC2007, 0.06 for COCO and NUS-WIDE
    ramp      E_k, the epochs over which both shares grow from 0
    remove    which negatives are removed: "both", or only those of "high-loss" (which the paper calls CLS-L: CLS
              without the removal of low losses) or only those of "low-loss" (which it calls CLS-H)
    correct   co-label correction (the paper's Figure 5): a suspected false negative is learned as present instead of
              being removed

    The paper knows no verified absent labels. They are certain, so they are never suspects and the number removed in
    the first step is a share of the unknown labels alone; in the second step they compete with the other negatives,
    for that step is about balance and not about truth.

    >>> import torch
    >>> from pluralis.models import create_model
    >>> method = CLS(Setup(lambda: create_model("tiny", 3), 3), tau_h=0.01)
    >>> batch = Batch((torch.zeros(2, 3, 24, 24),), torch.tensor([[1, 0, 0], [0, 1, -1]]), torch.arange(2))
    >>> sorted(method(batch, Clock()))
    ['f', 'g']
    """

    paper = (
        "Lyu et al.: Addressing Multi-Label Learning with Partial Labels: "
        "From Sample Selection to Label Selection, AAAI 2025"
    )

    def __init__(
        self,
        setup: Setup,
        tau_h: float = 0.005,
        tau_l: float = 0.02,
        ramp: int = 10,
        remove: str = "both",
        correct: bool = False,
    ) -> None:
        super().__init__(setup)
        self.tau_h = number("method cls", "tau_h", tau_h, low=0.0, below=1.0)
        self.tau_l = number("method cls", "tau_l", tau_l, low=0.0, below=1.0)
        self.ramp = whole("method cls", "ramp", ramp, low=1)
        self.remove = choice("method cls", "remove", remove, REMOVES)
        self.correct = flag("method cls", "correct", correct)
        if correct and remove == "low-loss":
            raise RecipeError(
                "method cls: correct = true turns high-loss negatives into positives, but remove = 'low-loss' leaves "
                "them alone; set remove to 'both' or 'high-loss', or correct to false"
            )

    def rates(self, epoch: int) -> tuple[float, float]:
        """R_h and R_l."""
        high = 0.0 if self.remove == "low-loss" else self.tau_h
        low = 0.0 if self.remove == "high-loss" else self.tau_l
        return reserved(high, self.ramp, epoch), reserved(low, self.ramp, epoch)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        f, g = self.logits(batch)
        both = torch.stack([f, g]).detach()
        kept, suspects = select(both, both.flip(0), batch.labels, *self.rates(clock.epoch))
        return {
            "f": self._loss(f, batch.labels, kept[0], suspects[0]),
            "g": self._loss(g, batch.labels, kept[1], suspects[1]),
        }

    def late(self) -> list[Late]:
        return [Late("method cls: no label will be removed", 1)]

    def _loss(self, own: Tensor, labels: Tensor, kept: Tensor, suspects: Tensor) -> Tensor:
        targets = labels.masked_fill(suspects, 1) if self.correct else labels
        return (an(own, targets, reduction="none") * (kept | (targets > 0))).mean()


def select(own: Tensor, peer: Tensor, labels: Tensor, rate_h: float, rate_l: float) -> Selection:
    """Eqs. 1 and 3 for the network with logits `own` [B, C]; its peer's are `peer`, and the rates are R_h and R_l.

    Both may be [m, B, C] for m networks at once; the labels are [B, C]. The cross-entropy of a negative,
    log(1 + exp(z)), grows with z, so the logits themselves are ranked: very small losses, which all round to 0, are
    still told apart.

    >>> import torch
    >>> own, peer = torch.tensor([[0.0, -3.0, 1.0, 2.0]]), torch.tensor([[0.0, 1.0, -2.0, 9.0]])
    >>> select(own, peer, torch.tensor([[1, 0, 0, 0]]), rate_h=0.7, rate_l=0.5)
    Selection(kept=tensor([[False, False,  True, False]]), suspects=tensor([[False, False, False,  True]]))
    """
    own_rows, peer_rows = (z.detach().reshape(-1, labels.numel()) for z in (own, peer))
    flat = labels.reshape(-1)
    known = flat != 0
    removed = (flat >= 0) > share_of_rows(peer_rows, known, rate_h)  # and all that are present
    kept = share_of_rows(own_rows, removed, rate_l, largest=True)
    return Selection(kept.view(own.shape), (removed > known).view(own.shape))
