"""A loss that knows how many labels an image has on average, and nothing else about the unknown ones."""

from __future__ import annotations

import torch
from torch import Tensor

from pluralis.losses.base import Loss
from pluralis.losses.kernels import check_batch, known_cross_entropy
from pluralis.losses.pointwise import pointwise
from pluralis.params import number


def epr(logits: Tensor, labels: Tensor, k: float = 1.5) -> Tensor:
    """Expected positive regularisation: the batch should hold k present labels an image, whichever they are.

    L = −(1/NC) Σ [1(y=1) log p + 1(y=−1) log(1−p)] + ((k̂ − k)/C)², k̂ = (1/N) Σ_n Σ_c p. Cole et al., CVPR 2021;
    verified absent labels, which the paper does not have, take the cross-entropy as the present ones do.
    The square is of a mean over the batch, so there is only this reduction.

    >>> epr(torch.tensor([[0.0, 0.0, -50.0]]), torch.tensor([[1, 0, 0]]), k=1.0)
    tensor(0.2310)
    """
    check_batch(logits, labels)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    expected = wide.sigmoid().sum() / max(logits.shape[0], 1)
    known = pointwise(known_cross_entropy, logits, labels, coded=True)
    return known + ((expected - k) / max(logits.shape[1], 1)).square()


class EPR(Loss):
    """Expected positive regularisation (see `functional.epr`); `k` is VOC's, and 2.9 for COCO, 1.9 NUS, 31.4 CUB.

    >>> EPR(k=1.0)(torch.tensor([[0.0, 0.0, -50.0]]), torch.tensor([[1, 0, 0]]))
    tensor(0.2310)
    """

    paper = "Cole et al.: Multi-Label Learning from Single Positive Labels, CVPR 2021"
    batch_coupled = True

    def __init__(self, k: float = 1.5) -> None:
        super().__init__()
        self.k = number("loss epr", "k", k, above=0.0)

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return epr(logits, labels, self.k)
