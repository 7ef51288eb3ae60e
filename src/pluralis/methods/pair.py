"""What methods with two networks share: their predictions, a share that falls epoch by epoch, and exact selection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.method import Batch, Method, Predict, Setup


class Pair(Method):
    """Two networks f and g of the same kind, which start from different random heads and see the same batches.

    `predict` gives the logit of the mean of their two probabilities; `members()` gives each of them.
    """

    batch_coupled = True  # what is selected depends on the whole batch

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.f = setup.make_net()
        self.g = setup.make_net()

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
    # 0.57·100 is 56.99999999999999: what rounding took away is given back before the floor.
    return (count.double() * rate + 1e-6).floor().long()


@torch.no_grad()
def lowest(values: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Where the `count` lowest values are among those marked; of equal values the earlier ones are taken.

    values: finite floats of any shape; among: bool, the same shape; count: a whole number in a tensor, at most the
    number marked. A stable sort gives exactly `count` with ties, and neither loops nor waits for the device.

    >>> lowest(torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, True, False]), torch.tensor(1))
    tensor([False,  True, False, False])
    """
    order = values.masked_fill(~among, torch.inf).flatten().argsort(stable=True)
    taken = torch.empty_like(among).flatten()
    taken[order] = torch.arange(len(order), device=values.device) < count
    return taken.view_as(among) & among


def wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
