"""Large-loss selection: the assumed negatives with the largest loss of a batch are probably present labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pluralis.losses.base import Late, Loss
from pluralis.losses.kernels import check_batch, known_cross_entropy, signs
from pluralis.losses.pointwise import pointwise
from pluralis.params import number

PAPER = "Kim et al.: Large Loss Matters in Weakly Supervised Multi-Label Classification, CVPR 2022"
_SAMPLE = 32_768
_WORTH_SAMPLING = 8 * _SAMPLE


def ll_r(logits: Tensor, labels: Tensor, share: float = 0.0, reduction: str = "mean") -> Tensor:
    """Large loss, rejection: assume negative, without the k unknown entries of the batch that have the largest loss.

    L = −(1/NC) Σ λ [1(y=1) log p + 1(y≠1) log(1−p)], λ = 0 on the k entries and 1 elsewhere, k = ⌈N·C·share⌉ but no
    more than there are unknown entries. Kim et al., CVPR 2022. The loss of an unknown entry grows with its logit, so
    the k largest logits are taken. Labels that are present or verified absent are never touched.

    >>> ll_r(torch.tensor([[0.0, 0.0, 3.0]]), torch.tensor([[1, 0, 0]]), share=0.1, reduction="none")
    tensor([[0.6931, 0.6931, 0.0000]])
    """
    return pointwise(known_cross_entropy, logits, _targets(logits, labels, share, 0, reduction), reduction, coded=True)


def ll_ct(logits: Tensor, labels: Tensor, share: float = 0.0, reduction: str = "mean") -> Tensor:
    """Large loss, temporary correction: as `ll_r`, but the k entries count as present in this step.

    L = −(1/NC) Σ [1(y=1 or one of the k) log p + 1(all others) log(1−p)]. Kim et al., CVPR 2022.
    Labels that are verified absent are never among the k: they take log(1−p) in every step.

    >>> ll_ct(torch.tensor([[0.0, 0.0, 3.0]]), torch.tensor([[1, 0, 0]]), share=0.1, reduction="none")
    tensor([[0.6931, 0.6931, 0.0486]])
    """
    return pointwise(known_cross_entropy, logits, _targets(logits, labels, share, 1, reduction), reduction, coded=True)


def how_many(entries: int, share: float) -> int:
    """⌈entries·share⌉, and not more than there are.

    >>> 100 * 0.07, how_many(100, 0.07), how_many(101, 0.07)
    (7.000000000000001, 7, 8)
    """
    return min(math.ceil(entries * share - 1e-6), entries)


def largest_unknown(logits: Tensor, unknown: Tensor, k: int) -> Tensor:
    """Flat positions of the k `unknown` entries ([N, C] bool) with the largest logits.

    Always k positions of [N·C], so that no count has to come back from the device: those beyond the unknown ones
    point to known entries, which the caller leaves as they are.
    """
    z, among = logits.detach().reshape(-1), unknown.reshape(-1)
    if z.is_cpu and not torch.compiler.is_compiling() and len(z) >= _WORTH_SAMPLING:
        near = _candidates(z, among, k)
        if near is not None:
            return near[z[near].topk(k, sorted=False).indices]
    return torch.where(among, z, -math.inf).topk(k, sorted=False).indices


class LLR(Loss):
    """Large loss, rejection (see `functional.ll_r`): a share δ more of the entries in each epoch.

    share = δ·t with t = 0 in the first epoch, which is plain assume negative. The paper takes δ between 0.1 and 0.5 %,
    by data set; 0.2 % is written 0.002.

    >>> LLR(delta=0.5)(torch.tensor([[0.0, 3.0]]), torch.tensor([[1, 0]]), epoch=1)
    tensor(0.3466)
    """

    paper = PAPER
    batch_coupled = True

    def __init__(self, delta: float = 0.002) -> None:
        super().__init__()
        self.delta = number("loss ll-r", "delta", delta, low=0.0, high=1.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return ll_r(logits, labels, self.delta * epoch)

    def late(self) -> list[Late]:
        return [Late("loss ll-r: no label will be left out", 1)]


class LLCt(Loss):
    """Large loss, temporary correction (see `functional.ll_ct`); `delta` as for `ll-r`.

    Labels that are verified absent are never corrected.

    >>> LLCt(delta=0.5)(torch.tensor([[0.0, 3.0]]), torch.tensor([[1, 0]]), epoch=1)
    tensor(0.3709)
    """

    paper = PAPER
    batch_coupled = True

    def __init__(self, delta: float = 0.002) -> None:
        super().__init__()
        self.delta = number("loss ll-ct", "delta", delta, low=0.0, high=1.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return ll_ct(logits, labels, self.delta * epoch)

    def late(self) -> list[Late]:
        return [Late("loss ll-ct: no label will be corrected", 1)]


def _targets(logits: Tensor, labels: Tensor, share: float, mark: int, reduction: str) -> Tensor:
    """+1 present, −1 absent or assumed so, and `mark` for the unknown entries with the largest loss."""
    check_batch(logits, labels, reduction)
    given = signs(labels)
    unknown = given.logical_not()  # several times faster than a comparison
    target = given.masked_fill(unknown, -1)
    k = how_many(target.numel(), share)
    if k > 0:
        where = largest_unknown(logits, unknown, k)
        chosen = given.reshape(-1)[where]
        target.view(-1)[where] = chosen.masked_fill(chosen == 0, mark) if mark else chosen
    return target


def _candidates(z: Tensor, among: Tensor, k: int) -> Tensor | None:
    """Positions of few entries among which the k largest unknown ones are for certain, or None if that is not clear.

    A threshold from a sample leaves little to search, which on the CPU is several times faster than a search in all.
    """
    step = len(z) // _SAMPLE
    sample = torch.where(among[::step], z[::step], -math.inf)
    expected = k / step
    rank = int(1.2 * expected + 4 * math.sqrt(expected) + 4)
    if rank > len(sample) // 4:
        return None
    threshold = sample.topk(rank, sorted=False).values.min()
    near = (z >= threshold).logical_and_(among).nonzero().squeeze(1)
    return near if len(near) >= k else None
