"""What methods with two networks share: their predictions, a share that falls epoch by epoch, and exact selection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.method import Batch, Method, Predict, Setup

_SPARE = 1e-6  # 0.57·100 is 56.99999999999999: what rounding took away is given back before the floor


class Pair(Method):
    """Two networks f and g of the same kind, which start from different random heads and see the same batches.

    `predict` gives the logit of the mean of their two probabilities; `members()` gives each of them.
    """

    batch_coupled = True  # what is selected depends on the whole batch

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.f = setup.make_net()
        self.g = setup.make_another(self.f)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of f and of g, each [B, C] in at least float32: differences between losses decide what is selected."""
        return wide(self.f(batch.views[0])), wide(self.g(batch.views[0]))

    def predict(self, x: Tensor) -> Tensor:
        return mean_logit(self.f(x), self.g(x))

    def members(self) -> dict[str, Predict]:
        return {"f": self.f, "g": self.g}


def mean_logit(a: Tensor, b: Tensor) -> Tensor:
    """The logit of (σ(a) + σ(b))/2: log(σ(a) + σ(b)) − log(σ(−a) + σ(−b)), from which the halves cancel.

    >>> mean_logit(torch.tensor([2.0, 1e4]), torch.tensor([2.0, -1e4]))
    tensor([2., 0.])
    """
    a, b = wide(a), wide(b)
    present = torch.logaddexp(F.logsigmoid(a), F.logsigmoid(b))
    return present - torch.logaddexp(F.logsigmoid(-a), F.logsigmoid(-b))


def reserved(tau: float, ramp: int, epoch: int) -> float:
    """R(e) = 1 − min(τ·e/E_k, τ), with e the epochs that are finished and E_k = ramp: the first epoch keeps all.

    Han et al., NeurIPS 2018, Algorithm 1, and Lyu et al., AAAI 2025, Algorithm 1, change R after each epoch.

    >>> [reserved(0.2, 10, epoch) for epoch in (0, 5, 10, 99)]
    [1.0, 0.9, 0.8, 0.8]
    """
    return 1.0 - tau * min(epoch / ramp, 1.0)


def share(count: Tensor, rate: float) -> Tensor:
    """⌊rate·count⌋ as a tensor, so that nobody waits for the device.

    >>> share(torch.tensor([100, 7]), 1 - 0.43)
    tensor([57,  3])
    """
    return (count.double() * rate + _SPARE).floor().long()


@torch.no_grad()
def lowest(values: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Where the `count` lowest values are among those marked; of equal values the earlier ones are taken.

    values: finite floats of any shape; among: bool, the same shape; count: a whole number in a tensor, at most the
    number marked. A stable sort gives exactly `count` with ties, and neither loops nor waits for the device.

    >>> lowest(torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, True, False]), torch.tensor(1))
    tensor([False,  True, False, False])
    """
    return _first(values.reshape(1, -1), ~among.reshape(1, -1), count.reshape(1, 1), largest=False).view_as(among)


@torch.no_grad()
def share_of_rows(values: Tensor, besides: Tensor, rate: float, largest: bool = False) -> Tensor:
    """[m, n] as `lowest`, or with the highest values: for each row ⌊rate·k⌋ of the k entries that are not `besides`.

    values: [m, n]; besides: bool, [m, n] or [n] for all rows alike.

    >>> values = torch.tensor([[3.0, 1.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    >>> share_of_rows(values, torch.tensor([False, False, False, True]), 0.5)
    tensor([[False,  True, False, False],
            [ True, False, False, False]])
    """
    outside = besides.sum(-1, keepdim=True, dtype=torch.float64)
    count = outside.mul_(-rate).add_(rate * values.shape[1] + _SPARE)
    return _first(values, besides.expand(values.shape), count, largest)


def _first(values: Tensor, besides: Tensor, count: Tensor, largest: bool) -> Tensor:
    """The entries of each row [m, n] that have a rank up to `count`, [m, 1] or [1], which need not be whole."""
    keys = values.masked_fill(besides, -torch.inf if largest else torch.inf)
    order = torch.sort(keys, dim=1, descending=largest, stable=True).indices
    ranks = torch.arange(1, values.shape[1] + 1, device=values.device)
    taken = torch.empty(values.shape, dtype=torch.bool, device=values.device)
    return taken.scatter_(1, order, (ranks <= count).expand(values.shape)) > besides


def wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
