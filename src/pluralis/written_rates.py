"""The likelihood of labels of which the present and the absent ones are each written at a rate, and who is present."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.conditional_calibration import BOUNDS, PRIOR, Floats, bootstrap, telling
from pluralis.errors import DataError

_NEVER = -60.0  # log-odds of a rate that is 0: finite, so that 0·log ρ is 0
_RATE_BOUND = 12.0  # log-odds between which rates are sought
_REFITS = 40  # bootstrap samples for the error of a rate
_MOST = 2000  # rows of such a sample: of more rows it is scaled down
_FLAT = 1 / 2.25  # log-odds of a rate on its own are around 0, with a deviation of 1.5: nearly every rate alike
_UNLIKE = 1 / 9  # log-odds of the two rates differ by 0, with a deviation of 3


class RatesFit(NamedTuple):
    """(log a, b) of p = σ(a·z + b), the rates of present and of absent labels, and −log likelihood of the rows [n]."""

    theta: Floats
    rates: tuple[float, float]  # the first is a mean where one was given for each class
    nll: Tensor


def rates_nll(logits: Tensor, labels: Tensor, present: float | Tensor, absent: float) -> tuple[Tensor, Tensor, Tensor]:
    """[N] −log P(written labels), its derivative by the logits [N, C], and by the log-odds of both rates [N, 2].

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
    by_present = (chance * in_log.exp() - written * in_hidden.exp()).sum(1)
    by_absent = ((unknown - chance) * out_log.exp() - verified * out_hidden.exp()).sum(1)
    return each.sum(1), slope, torch.stack([by_present, by_absent], 1)


def fit_rates(z: Tensor, y: Tensor, rate: float | Tensor | None = None, every: bool = False) -> RatesFit:
    """The calibration and the rates under which the written labels are most likely.

    `rate` of present labels, a number or [C], where it is known; absent labels have the rate 0 where none is verified
    in a row with unknown ones. A weak prior keeps a handful of rows from running away: log a, b and the difference of
    the rates' log-odds are normal around 0, with deviations 1, 3 and 3; the log-odds of ρ₊ alone, where ρ₋ is 0, with
    1.5: that rate is the share of written labels where a class is there beyond doubt, which few rows, or a model that
    is never sure, leave open. z: logits [N, C]; y: labels [N, C]. Rows without any label say nothing and are left out,
    unless somebody looked at `every` row.
    """
    from scipy.optimize import minimize

    z, y = telling(z, y, every)
    partial = y[(y == 0).any(1)]
    if rate is None and not len(partial):
        raise DataError(
            "every label of the rows that have any is known, so they say nothing of the rate at which labels are"
            " written: give the rate, or hold out rows with unknown labels"
        )
    verified = bool((partial < 0).any())
    known = _log_odds(torch.tensor(float((partial != 0).double().mean()) if partial.numel() else 0.5))
    given = None if rate is None else _log_odds(torch.as_tensor(rate, dtype=z.dtype).cpu())
    start = np.array([0.0, 0.0, float(known if given is None else given.mean()), float(known) if verified else _NEVER])

    def parts(theta: Floats) -> tuple[Tensor, Tensor, Tensor]:
        present = float(theta[2]) if given is None else given
        return rates_nll(math.exp(theta[0]) * z + float(theta[1]), y, present, float(theta[3]))

    told = _rates_prior(verified) if given is None else np.zeros((4, 4))

    def objective(theta: Floats) -> tuple[float, Floats]:
        nll, slope, pulls = parts(theta)
        pull = [float((slope * z).sum()) * math.exp(theta[0]), float(slope.sum()), *pulls.sum(0).tolist()]
        prior = np.append(PRIOR @ theta[:2], [0.0, 0.0]) + told @ theta
        return (float(nll.sum()) + float(theta @ prior) / 2) / len(z), (np.array(pull) + prior) / len(z)

    fixed, free = [(value, value) for value in start[2:]], (-_RATE_BOUND, _RATE_BOUND)
    sought = [free if given is None else fixed[0], free if verified else fixed[1]]
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[*BOUNDS, *fixed]).x
    if sought != fixed:  # from where labels are missing at random: all four at once may be lost far away
        found = minimize(objective, found, jac=True, method="L-BFGS-B", bounds=[*BOUNDS, *sought]).x
    rates = torch.from_numpy(found[2:]).sigmoid().tolist()
    if rate is not None:
        rates[0] = float(torch.as_tensor(rate).double().mean())
    return RatesFit(found[:2], (rates[0], rates[1] if verified else 0.0), parts(found)[0])


def chances_by_rates(logits: Tensor, labels: Tensor, rates: tuple[float, float], every: bool = False) -> Tensor:
    """[N, C] the chance of each label being present given what was written: 1 on written labels, 0 on absent ones.

    r = (1−ρ₊) p / ((1−ρ₊) p + (1−ρ₋) (1−p)) where a label is unknown; p in rows without any label, unless somebody
    looked at `every` row.

    >>> chances_by_rates(torch.zeros(1, 3), torch.tensor([[1, -1, 0]]), (0.5, 0.0))
    tensor([[1.0000, 0.0000, 0.3333]])
    """
    return _shifted(logits, labels, math.log1p(-rates[0]) - math.log1p(-rates[1]), every)


class DrawnRates(NamedTuple):
    """θ̂ = (log a, b, s), θ of bootstrap samples of the rows less θ̂ [draws, 3], rows, rates, and what the model wins.

    s = log (1−ρ₊) − log (1−ρ₋) is all that the rates say of a label that is unknown: r = σ(a·z + b + s). `error` is the
    deviation of ρ₊ over the samples.
    """

    best: Floats
    steps: Floats
    rows: int
    rates: tuple[float, float]
    gain: float
    error: float

    def chances(self, z: Tensor, y: Tensor, theta: Floats, every: bool) -> Tensor:
        return _shifted(math.exp(theta[0]) * z + float(theta[1]), y, float(theta[2]), every)


def draw_rates(z: Tensor, y: Tensor, draws: int, rng: np.random.Generator, every: bool = False) -> DrawnRates:
    """`fit_rates`, and how surely its numbers are known."""
    fit = fit_rates(z, y, every=every)
    z, y = telling(z, y, every)
    best, steps = _drawn(fit, z, y, draws, rng)

    def seen(theta: Floats) -> Floats:
        hidden = np.logaddexp(0, theta[..., 2:].clip(-_RATE_BOUND, _RATE_BOUND))  # −log (1−ρ)
        return np.concatenate([theta[..., :2], hidden[..., 1:] - hidden[..., :1]], -1)

    if fit.rates[1] > 0:
        gain = gain_of_known(math.exp(best[0]) * z + float(best[1]) + math.log(fit.rates[0] / fit.rates[1]), y)
    else:
        gain = _gain_of_written(fit, y)
    error = rate_error(fit.rates[0], z, y, every=True)
    return DrawnRates(seen(best), seen(best + steps) - seen(best), len(z), fit.rates, gain, error)


def rate_error(rate: float, z: Tensor, y: Tensor, every: bool = False) -> float:
    """The deviation of ρ₊ = `rate` from what `fit_rates` finds for bootstrap samples of the rows.

    Every sample is fitted anew: where the rows hardly tell, one step of Newton's would not go far enough.
    """
    z, y = telling(z, y, every)
    rng, size = np.random.default_rng(0), min(len(z), _MOST)
    samples = (torch.from_numpy(rng.integers(len(z), size=size)) for _ in range(_REFITS))
    telling_it = (rows for rows in samples if bool((y[rows] != 0).any() and (y[rows] == 0).any()))
    found = [fit_rates(z[rows], y[rows], every=True).rates[0] for rows in telling_it]
    if not found:
        return math.nan
    return float(np.sqrt(np.mean(np.square(np.array(found) - rate)) * size / len(z)))


def _drawn(fit: RatesFit, z: Tensor, y: Tensor, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """θ̂ = (log a, b, log-odds of both rates), and θ of bootstrap samples of the rows less θ̂ [draws, 4]."""

    def slopes(theta: Floats) -> Floats:
        a = math.exp(theta[0])
        _, slope, pulls = rates_nll(a * z + float(theta[1]), y, float(theta[2]), float(theta[3]))
        return torch.cat([(slope * z).sum(1, keepdim=True) * a, slope.sum(1, keepdim=True), pulls], 1).numpy()

    prior = _rates_prior(fit.rates[1] > 0)
    prior[:2, :2] = PRIOR
    best = np.append(fit.theta, [math.log(rate / (1 - rate)) if rate > 0 else _NEVER for rate in fit.rates])
    return best, bootstrap(best, slopes, prior, draws, rng)


def gain_of_known(logits: Tensor, labels: Tensor) -> float:
    """The share of the cross-entropy of known labels that the model saves, beside the frequencies of the classes.

    Of rows with unknown labels: those that are complete were not written at these rates.
    """
    partial = (labels == 0).any(1)
    logits, labels = logits[partial], labels[partial]
    known, present = labels != 0, (labels > 0).double()
    often = ((present.sum(0) + 0.5) / (known.sum(0) + 1)).logit().expand_as(logits)
    model, without = (F.binary_cross_entropy_with_logits(x[known], present[known]) for x in (logits, often))
    return float(1 - model / without)


def _gain_of_written(fit: RatesFit, labels: Tensor) -> float:
    """The share of −log likelihood that the model saves beside the frequencies of the classes, where none is absent."""
    often = (((labels > 0).double().sum(0) + 0.5) / (len(labels) + 1)).logit().expand(len(labels), -1)
    without = float(fit_rates(often, labels, every=True).nll.mean())
    return 1 - float(fit.nll.mean()) / without if without > 0 else 0.0


def _rates_prior(verified: bool) -> Floats:
    """[4, 4] the precision of both rates' log-odds: of their difference, or of those of ρ₊ alone where ρ₋ is 0."""
    prior = np.zeros((4, 4))
    prior[2:, 2:] = _UNLIKE * np.array([[1, -1], [-1, 1]]) if verified else np.diag([_FLAT, 0.0])
    return prior


def _shifted(logits: Tensor, labels: Tensor, shift: float, every: bool = False) -> Tensor:
    """σ of shifted logits where a label is unknown; rows without any label have no shift, unless `every` one has."""
    looked = (labels != 0).any(1, keepdim=True) | every
    found = torch.where(looked, logits + shift, logits).sigmoid()
    return torch.where(labels == 0, found, (labels > 0).to(found))


def _log_odds(rate: Tensor) -> Tensor:
    return rate.double().logit(eps=1e-9)
