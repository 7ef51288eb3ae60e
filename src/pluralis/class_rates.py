"""At which rate the labels of each class are written, as held-out rows tell it, and how surely."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.conditional_calibration import telling

_GRID = 40  # rates between 0 and 1 at which the likelihood is worked out
_STEPS = 8  # of Newton's at each; the next begins where the one before ended


def rates_by_class(x: Tensor, y: Tensor, every: bool = False) -> tuple[Tensor, Tensor]:
    """[C] the rate ρ at which present labels of each class are written, and its deviation, both in float64.

    x: log-odds [N, C] of being present, calibrated with numbers that all classes share, y: labels [N, C]. The level of
    a single class may be off, and more are there if fewer of them were written: p = σ(x + s) with an unknown s, normal
    around 0 with the deviation 1, and

        ℓ(ρ, s) = Σ_O log(ρ p) + Σ_A log(1−p) + Σ_U log(1 − ρp) − s²/2.

    The chance of a rate, all being alike before, is ∝ exp ℓ(ρ, ŝ) / √(−∂²ℓ/∂s²) at the best ŝ for it (Laplace); given
    are its mean and deviation. Where nothing tells a rate from a level, that is 0.5 ± 0.29. Rows without any label are
    left out, unless somebody looked at `every` row.

    >>> x = torch.tensor([[9.0], [-9.0]], dtype=torch.float64).repeat(500, 1)     # half of the rows show it for certain
    >>> rate, error = rates_by_class(x, torch.tensor([[1], [0], [0], [0]]).repeat(250, 1), every=True)
    >>> round(rate.item(), 2), round(error.item(), 2)
    (0.5, 0.02)
    """
    x, y = telling(x, y, every)
    written, absent, unknown = ((y == sign).to(x.dtype) for sign in (1, -1, 0))
    rates = (torch.arange(_GRID, dtype=x.dtype) + 0.5) / _GRID
    shift, found = x.new_zeros(x.shape[1]), []
    for rate in rates:
        for _ in range(_STEPS):
            p = (x + shift).sigmoid_()
            hidden = rate * p / (1 - rate * p)  # the odds of an unknown label being written
            pull = (written - (written + absent) * p - unknown * (1 - p) * hidden).sum(0) - shift
            spread = (1 - p) * ((written + unknown) * (1 - p) * hidden + absent * p)  # as expected: never negative
            stiffness = spread.sum(0) + 1
            shift = shift + (pull / stiffness).clamp_(-1, 1)
        log_odds = x + shift
        each = written * (F.logsigmoid(log_odds) + rate.log()) + absent * F.logsigmoid(-log_odds)
        each += unknown * torch.log1p(-rate * log_odds.sigmoid())
        found.append(each.sum(0) - shift.square() / 2 - stiffness.log() / 2)
    chance = torch.stack(found).softmax(0)
    mean = rates @ chance
    return mean, ((rates[:, None] - mean).square() * chance).sum(0).sqrt()
