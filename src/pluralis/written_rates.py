"""The likelihood of labels of which the present and the absent ones are each written at a rate, and who is present."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.conditional_calibration import BOUNDS, PRIOR, Floats, telling

_NEVER = -60.0  # log-odds of a rate that is 0: finite, so that 0·log ρ is 0
_RATE_BOUND = 12.0  # log-odds between which rates are sought
_UNLIKE = 1 / 9  # log-odds of the two rates differ by 0, with a deviation of 3


class RatesFit(NamedTuple):
    """(log a, b) of p = σ(a·z + b), the rates of present and of absent labels, and −log likelihood of the rows [n]."""

    theta: Floats
    rates: tuple[float, float]  # the first is a mean where one was given for each class
    nll: Tensor


def rates_nll(
    logits: Tensor, labels: Tensor, present: float | Tensor, absent: float
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """[N] −log P(written labels), its derivative by the logits [N, C], and of its sum by the log-odds of both rates.

        L_n = −Σ_O log(ρ₊ p) − Σ_A log(ρ₋ (1−p)) − Σ_U log((1−ρ₊) p + (1−ρ₋) (1−p))

    O are the written labels of the row n, A its verified absent ones, U the unknown ones; `present` and `absent` are
    the log-odds of ρ₊ (a number or [C]) and ρ₋. With ρ₊ = ρ₋ labels are missing at random and an unknown one says
    nothing of p. A row of which every label is known says nothing of rates: it has the plain cross-entropy.

    >>> z = torch.zeros(1, 3, dtype=torch.float64)
    >>> rates_nll(z, torch.tensor([[1, -1, 0]]), 0.0, 0.0)[0].exp()             # 1/P: 4 · 4 · 2
    tensor([32.], dtype=torch.float64)
    """
    log_odds = torch.as_tensor(present, dtype=logits.dtype), torch.as_tensor(absent, dtype=logits.dtype)
    (in_log, out_log), (in_hidden, out_hidden) = map(F.logsigmoid, log_odds), (F.logsigmoid(-x) for x in log_odds)
    shift = in_hidden - out_hidden
    unknown = (labels == 0).to(logits.dtype)
    partial = unknown.amax(1, keepdim=True)
    written, verified = (labels > 0).to(logits.dtype), (labels < 0).to(logits.dtype)
    # An unknown label costs log(1 + eˣ) − log(1 + eˣ⁺ˢ) − log(1−ρ₋), with s = log(1−ρ₊) − log(1−ρ₋).
    hidden = logits + shift
    each = F.softplus(logits).addcmul_(written, logits, value=-1).addcmul_(unknown, F.softplus(hidden), value=-1)
    chance = hidden.sigmoid_().mul_(unknown)
    slope = logits.sigmoid().sub_(written).sub_(chance)
    written, verified = written.mul_(partial), verified.mul_(partial)
    each = each.sub_(written * in_log).sub_(verified * out_log).sub_(unknown * out_hidden)
    by_present = (chance * in_log.exp() - written * in_hidden.exp()).sum()
    by_absent = ((unknown - chance) * out_log.exp() - verified * out_hidden.exp()).sum()
    return each.sum(1), slope, (float(by_present), float(by_absent))


def fit_rates(z: Tensor, y: Tensor, rate: float | Tensor | None = None, every: bool = False) -> RatesFit:
    """The calibration and the rates under which the written labels are most likely.

    `rate` of present labels, a number or [C], where it is known; absent labels have the rate 0 where none is verified
    in a row with unknown ones. A weak prior keeps a handful of rows from running away: log a, b and the difference of
    the rates' log-odds are normal around 0, with deviations 1, 3 and 3. z: logits [N, C]; y: labels [N, C]. Rows
    without any label say nothing and are left out, unless somebody looked at `every` row.
    """
    from scipy.optimize import minimize

    z, y = telling(z, y, every)
    partial = y[(y == 0).any(1)]
    verified = bool((partial < 0).any())
    known = _log_odds(torch.tensor(float((partial != 0).double().mean()) if partial.numel() else 0.5))
    given = None if rate is None else _log_odds(torch.as_tensor(rate, dtype=z.dtype).cpu())
    start = np.array([0.0, 0.0, float(known if given is None else given.mean()), float(known) if verified else _NEVER])

    def parts(theta: Floats) -> tuple[Tensor, Tensor, tuple[float, float]]:
        present = float(theta[2]) if given is None else given
        return rates_nll(math.exp(theta[0]) * z + float(theta[1]), y, present, float(theta[3]))

    unlike = np.array([0.0, 0.0, 1.0, -1.0]) if given is None and verified else np.zeros(4)

    def objective(theta: Floats) -> tuple[float, Floats]:
        nll, slope, pulls = parts(theta)
        pull = [float((slope * z).sum()) * math.exp(theta[0]), float(slope.sum()), *pulls]
        prior, apart = PRIOR @ theta[:2], _UNLIKE * float(unlike @ theta)
        total = float(nll.sum()) + (float(theta[:2] @ prior) + apart * float(unlike @ theta)) / 2
        return total / len(z), (np.array(pull) + np.append(prior, [0.0, 0.0]) + apart * unlike) / len(z)

    fixed, free = [(value, value) for value in start[2:]], (-_RATE_BOUND, _RATE_BOUND)
    sought = [free if given is None else fixed[0], free if verified else fixed[1]]
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[*BOUNDS, *fixed]).x
    if sought != fixed:  # from where labels are missing at random: all four at once may be lost far away
        found = minimize(objective, found, jac=True, method="L-BFGS-B", bounds=[*BOUNDS, *sought]).x
    rates = torch.from_numpy(found[2:]).sigmoid().tolist()
    if rate is not None:
        rates[0] = float(torch.as_tensor(rate).double().mean())
    return RatesFit(found[:2], (rates[0], rates[1] if verified else 0.0), parts(found)[0])


def chances_by_rates(logits: Tensor, labels: Tensor, rates: tuple[float, float]) -> Tensor:
    """[N, C] the chance of each label being present given what was written: 1 on written labels, 0 on absent ones.

    r = (1−ρ₊) p / ((1−ρ₊) p + (1−ρ₋) (1−p)) where a label is unknown; p in rows without any label.

    >>> chances_by_rates(torch.zeros(1, 3), torch.tensor([[1, -1, 0]]), (0.5, 0.0))
    tensor([[1.0000, 0.0000, 0.3333]])
    """
    shift = math.log1p(-rates[0]) - math.log1p(-rates[1])
    found = (logits + shift * (labels != 0).any(1, keepdim=True)).sigmoid()
    return torch.where(labels == 0, found, (labels > 0).to(found))


def _log_odds(rate: Tensor) -> Tensor:
    return rate.double().logit(eps=1e-9)
