"""The selection likelihood where each present label is written with a rate ρ, and what the labels say about ρ."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pluralis.errors import DataError
from pluralis.inputs import Array, Matrix, as_tensor, check_labels
from pluralis.losses.fused import fusible, rate_rows
from pluralis.losses.kernels import check_batch, log_sigmoid, signs, softplus
from pluralis.losses.rowwise import RowKernel, Rows, rowwise
from pluralis.losses.selection_one import roles
from pluralis.params import choice

UNLABELLED = ("skip", "absent")
_NAME = "estimate_rate"
_NEVER = -1e4  # log ρ of a label that is never written: finite, so that 0·log ρ is 0


def rate_likelihood(rate: float | Tensor, absent: bool) -> RowKernel:
    """For a fixed rate, a number or [C]: the constant Σ_O log ρ is left out."""
    return _likelihood(*_logs(rate), absent, learned=False)


def rate_posterior(rate: float | Tensor, absent: bool) -> RowKernel:
    """Gives the chances of being present in the place of the derivative: σ(z + log(1−ρ)) where a label is hidden."""
    _, log_hidden = _logs(rate)

    def kernel(z: Tensor, y: Tensor, slope: bool) -> Rows:
        minus, known, hidden = roles(z, y)
        unknown = 1 - known
        if absent:
            hidden = unknown
        found = (z + _beside(z, log_hidden)).sigmoid_().mul_(hidden).addcmul_(z.sigmoid(), unknown - hidden)
        return z.sum(1), found.sub_(minus.clamp_(max=0)), None

    return kernel


def learned_rate(logits: Tensor, labels: Tensor, log_odds: Tensor, absent: bool) -> Tensor:
    """The mean over N·C of −log P(written labels) as a function of the logits and of the log-odds [C] of the rates.

    Here Σ_O log ρ belongs to it. ∂/∂logit ρ = Σ_U ρ r − Σ_O (1−ρ): the rate rises until the written labels are its
    share of those that seem to be present.
    """
    constant = log_odds.detach().to(torch.promote_types(logits.dtype, torch.float32))
    kernel = _likelihood(log_sigmoid(constant), log_sigmoid(-constant), absent, learned=True)
    return rowwise(kernel, logits, labels, parameter=log_odds)


class RateEstimate(NamedTuple):
    """Rates and their standard errors, in float64: scalars, or [C]."""

    rate: Tensor
    error: Tensor


def estimate_rate(
    logits: Array, labels: Matrix, per_class: bool = False, unlabelled: str = "skip", steps: int = 100
) -> RateEstimate:
    """The rate at which present labels are written, from predictions for rows that the model was not trained on.

    The maximum over ρ of Σ_O log ρ + Σ_U log(1 − ρp), and the standard error √(Σ_n g_n²)/|ℓ''| with g_n the derivative
    of the image n's part, which holds where the labels of an image are not independent. It assumes that p = σ(z) is the
    chance of being present, not of being written: calibrated logits of a model that can tell the classes apart. p is
    taken as exact: where it is not, as after a training that learned a rate of its own, fit p and ρ together
    (`calibration.calibrate`, as runs and the estimator do). Where p is the same for all images, ρ is anything, and this
    only divides one by the other. logits, labels: [N, C], and labels may be `Labels`. Rows without a written label are
    left out as in `selection` ("skip") or counted ("absent"); if rows can come out empty by chance, leaving them out
    makes ρ too large. ρ = 1 where more was written than p expects; a class that was never
    written has ρ = 0 with the error 1/Σp, and NaN where Σp = 0.

    >>> z = torch.tensor([[9.0, -9.0]] * 8)                     # the first class is there, the second is not
    >>> found = estimate_rate(z, torch.tensor([[1, 0]] * 6 + [[0, 0]] * 2), unlabelled="absent")
    >>> round(found.rate.item(), 3), round(found.error.item(), 3)
    (0.75, 0.153)
    """
    logits, labels = as_tensor(_NAME, "logits", logits), as_tensor(_NAME, "labels", labels)
    check_batch(logits, labels)
    check_labels(_NAME, labels)
    if bool(logits.isnan().any()):
        row, column = logits.isnan().nonzero()[0].tolist()
        raise DataError(f"{_NAME}: the logit of row {row}, class {column} is NaN; look for a diverged model")
    sign = signs(labels)
    if choice(_NAME, "unlabelled", unlabelled, UNLABELLED) == "skip":
        rows = (sign > 0).any(1)
        logits, sign = logits[rows], sign[rows]
    if not len(sign):
        raise DataError(
            "no row has a written label, so there is no rate to estimate: give more rows, "
            'or unlabelled="absent" if somebody looked at them'
        )
    p = logits.double().sigmoid().clamp_(max=1 - 1e-12).masked_fill_(sign != 0, 0.0)  # of the unknown labels
    dims = (0,) if per_class else (0, 1)
    written = (sign > 0).double()
    count, expected = written.sum(dims), p.sum(dims)
    low, high = torch.zeros_like(count), torch.ones_like(count)
    rate = count / (count + expected).clamp_(min=1e-300)  # where to begin: between 0 and the answer
    for _ in range(steps):
        ratio = p / (1 - rate * p)
        slope = count / rate.clamp(min=1e-300) - ratio.sum(dims)
        low, high = torch.where(slope > 0, rate, low), torch.where(slope < 0, rate, high)
        newton = rate + slope / (count / rate.clamp(min=1e-150) ** 2 + ratio.square_().sum(dims)).clamp_(min=1e-300)
        inside = (newton > low) & (newton < high)
        moved = torch.where(inside, newton, (low + high) / 2)
        done = bool(((moved - rate).abs() <= 1e-12).all())
        rate = torch.where(count > 0, moved, 0.0)
        if done:
            break
    ratio = p / (1 - rate * p)
    own = written / rate.clamp(min=1e-150) - ratio
    curvature = count / rate.clamp(min=1e-150) ** 2 + ratio.square().sum(dims)
    spread = (own if per_class else own.sum(1)).square().sum(0)
    error = torch.where(count > 0, spread.sqrt() / curvature, 1 / expected)
    return RateEstimate(rate, torch.where(count + expected > 0, error, torch.nan))


def _logs(rate: float | Tensor) -> tuple[float | Tensor, float | Tensor]:
    """log ρ and log(1−ρ)."""
    if isinstance(rate, Tensor):
        return rate.log().clamp(min=_NEVER), (-rate).log1p()
    return (math.log(rate) if rate > 0 else _NEVER), (math.log1p(-rate) if rate < 1 else -math.inf)


def _beside(z: Tensor, value: float | Tensor) -> float | Tensor:
    """A rate may come from another device than the logits, and in another type."""
    return value.to(z) if isinstance(value, Tensor) else value


def _likelihood(log_written: float | Tensor, log_hidden: float | Tensor, absent: bool, learned: bool) -> RowKernel:
    """From the log-odds x that a label is written, σ(x) = ρp: an unknown label costs softplus(x).

    x = min(z, −log(1−ρ)) + log ρ − softplus(−|z + log(1−ρ)|), which keeps its digits for every z and ρ.
    """

    def kernel(z: Tensor, y: Tensor, slope: bool) -> Rows:
        if not learned and fusible(z):
            return *rate_rows(z, y, log_written, log_hidden, absent, slope), None
        log_rate, log_unwritten = _beside(z, log_written), _beside(z, log_hidden)
        minus, known, hidden = roles(z, y)
        if absent:
            hidden = 1 - known
        present = z + log_unwritten  # the log-odds of r
        x = softplus(-present.abs()).neg_().add_(log_rate).add_(z.clamp(max=-log_unwritten))
        wrong = x.mul_(hidden).addcmul_(z, minus)  # the log-odds of every label being otherwise
        loss = softplus(wrong).mul_(known.add_(hidden)).sum(1).double()
        if learned:
            loss += (minus.clamp(max=0) * log_rate).sum(1)
        if not slope:
            return loss, None, None
        rate = log_rate.exp() if isinstance(log_rate, Tensor) else math.exp(log_rate)
        pull = None
        if learned and isinstance(log_unwritten, Tensor):
            pull = (present.sigmoid() * hidden * rate).add_(minus.clamp(max=0) * log_unwritten.exp())
            pull = pull.sum(0, dtype=torch.float64)
        # p − r = ρ p (1−r)
        unknown = z.sigmoid().mul_(present.neg_().sigmoid_()).mul_(hidden).mul_(rate)
        return loss, unknown.addcmul_(minus, wrong.sigmoid_()), pull

    return kernel
