"""At which rate the labels of each class are written, as held-out rows tell it, and how surely."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.conditional_calibration import telling

_GRID = 24  # rates at which the likelihood is worked out
_LOOKS = 5  # at most: the first is between 0 and 1, the next where it was found, until they are closer than a deviation
_REACH = 4.0  # deviations on both sides that a next look takes in
_STEPS = 20  # of Newton's at most, for each rate; the next begins where the one before ended
_STILL = 1e-4  # a level that moves less has arrived
_ENTRIES = 2**22  # rows × classes at a time


def rates_by_class(x: Tensor, y: Tensor, every: bool = False) -> tuple[Tensor, Tensor]:
    """[C] the rate ρ at which present labels of each class are written, and its deviation, both in float64.

    x: log-odds [N, C] of being present, calibrated with numbers that all classes share, y: labels [N, C]. The level of
    a single class may be off, and more are there if fewer of them were written: p = σ(x + s) with an unknown s, normal
    around 0 with the deviation 1, and

        ℓ(ρ, s) = Σ_O log(ρ p) + Σ_A log(1−p) + Σ_U log(1 − ρp) − s²/2.

    The chance of a rate, all being alike before, is ∝ exp ℓ(ρ, ŝ) / √I at the best ŝ for it (Laplace), with I what
    −∂²ℓ/∂s² is expected to be there; given are its mean and deviation. Where nothing tells a rate from a level, that is
    0.5 ± 0.29. Rows without any label are left out, unless somebody looked at `every` row; rows of which every label is
    known tell p alone.

    >>> x = torch.tensor([[9.0, -9.0], [-9.0, -9.0]], dtype=torch.float64).repeat(500, 1)  # the first in half of all
    >>> y = torch.tensor([[1, 0], *[[0, 0]] * 9]).repeat(100, 1)                           # and written in a tenth
    >>> rates, errors = rates_by_class(x, y, every=True)
    >>> round(rates[0].item(), 2), round(errors[0].item(), 3)                              # √(ρ (1−ρ) / 500)
    (0.2, 0.018)
    """
    x, y = telling(x, y, every)
    partial = (y == 0).any(1, keepdim=True)
    columns = max(1, _ENTRIES // max(1, len(x)))
    parts = [_of(x[:, i : i + columns], y[:, i : i + columns], partial) for i in range(0, x.shape[1], columns)]
    rates, errors = (torch.cat(values) for values in zip(*parts, strict=True))
    return rates, errors


def _of(x: Tensor, y: Tensor, partial: Tensor) -> tuple[Tensor, Tensor]:
    """For a block of classes; `partial` [N, 1] are the rows that have an unknown label."""
    middle = (torch.arange(_GRID, dtype=x.dtype)[:, None] + 0.5) / _GRID
    low, high = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    for _ in range(_LOOKS):
        mean, deviation = _moments(low + (high - low) * middle, x, y, partial)
        apart = (high - low) / _GRID
        if bool((deviation > apart).all()):
            break
        reach = _REACH * torch.maximum(deviation, apart)
        low, high = (mean - reach).clamp_(min=0), (mean + reach).clamp_(max=1)
    return mean, deviation


def _moments(rates: Tensor, x: Tensor, y: Tensor, partial: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation [C] of the rate over those of a grid [G, C], which is even in each class."""
    written, absent, unknown = ((y == sign).to(x.dtype) for sign in (1, -1, 0))
    told, sure = written * partial, (written + absent) * ~partial
    shift, found = x.new_zeros(x.shape[1]), []
    for rate in rates:
        for _ in range(_STEPS):
            p = (x + shift).sigmoid_()
            odds = rate * p / (1 - rate * p)  # of a label of a partial row being written
            pull = (written - (written + absent) * p - unknown * (1 - p) * odds).sum(0) - shift
            spread = (1 - p) * ((told + unknown) * (1 - p) * odds + (absent * partial + sure) * p)
            stiffness = spread.sum(0) + 1
            step = (pull / stiffness).clamp_(-1, 1)
            shift = shift + step
            if bool((step.abs() < _STILL).all()):
                break
        log_odds = x + shift
        each = written * F.logsigmoid(log_odds) + absent * F.logsigmoid(-log_odds)
        each += unknown * torch.log1p(-rate * log_odds.sigmoid())
        of_rate = told.sum(0) * rate.clamp(min=1e-300).log()
        found.append(each.sum(0) + of_rate - shift.square() / 2 - stiffness.log() / 2)
    chance = torch.stack(found).softmax(0)
    mean = (rates * chance).sum(0)
    return mean, ((rates - mean).square() * chance).sum(0).sqrt()
