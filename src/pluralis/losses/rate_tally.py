"""How surely a rate that is learned while training is known: what the images of an epoch say about it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pluralis.distributed import world_size
from pluralis.losses.kernels import signs


class RateTally(nn.Module):
    """Sums over the images of an epoch from which the standard error of learned rates ρ follows.

    With ℓ = Σ_O log ρ + Σ_U log(1 − ρp) and g_n the derivative of the image n's part by ρ, the error is √(Σ g_n²)/|ℓ''|
    as in `estimate_rate`: right also where the labels of an image are not independent. Each image is judged at the step
    that shows it, with the rate of that moment, and p is taken as exact, although the network learns it from the same
    images: the true error is larger. A new epoch begins with empty sums; several processes keep the same ones.

    >>> tally = RateTally(1)
    >>> z, y = torch.tensor([[30.0, -30.0]] * 4), torch.tensor([[1, 0]] * 3 + [[0, 0]])    # four present, three written
    >>> tally.add(z, y, torch.tensor([0.75]), absent=True, epoch=0)
    >>> tally.errors()                                                                      # √(ρ(1−ρ)/4)
    tensor([0.2165], dtype=torch.float64)
    """

    sums: Tensor
    epoch: Tensor

    def __init__(self, rates: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2, rates, dtype=torch.float64))  # Σ g² and −ℓ''
        self.register_buffer("epoch", torch.tensor(-1))

    @torch.no_grad()
    def add(self, logits: Tensor, labels: Tensor, rates: Tensor, absent: bool, epoch: int) -> None:
        """Count a batch: logits and labels [N, C], rates [1] or [C]; `absent` as in `selection`."""
        sign = signs(labels)
        looked = torch.ones_like(sign[:, :1], dtype=torch.bool) if absent else (sign > 0).any(1, keepdim=True)
        p = logits.double().sigmoid().clamp_(max=1 - 1e-12).masked_fill_((sign != 0) | ~looked, 0.0)
        rate = rates.double().clamp(min=1e-9)
        written, ratio = (sign > 0).double(), p / (1 - rate * p)
        own, curvature = written / rate - ratio, (written / rate.square() + ratio.square()).sum(0)
        if len(rates) == 1:
            own, curvature = own.sum(1, keepdim=True), curvature.sum(0, keepdim=True)
        new = torch.stack([own.square().sum(0), curvature])
        if world_size() > 1:
            dist.all_reduce(new)
        self.sums.mul_(self.epoch == epoch).add_(new)  # no comparison on the host: a GPU would have to wait
        self.epoch.fill_(epoch)

    def errors(self) -> Tensor:
        """[1] or [C] standard errors in float64; NaN where nothing was said about a rate."""
        spread, curvature = self.sums
        return spread.sqrt() / curvature.where(curvature > 0, torch.nan)
