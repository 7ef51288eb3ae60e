"""Calibrations by the written labels alone, also given that an image has a label at all; and how surely it is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.errors import DataError
from pluralis.losses.selection import selection_nll

Floats = npt.NDArray[np.float64]
Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""[N] −log likelihood of the written labels of each row, and its derivative [N, C], of logits and labels [N, C]."""

PRIOR = np.diag([1.0, 1 / 9])  # of (log a, b): deviations 1 and 3 around 0
BOUNDS = [(-6.0, 6.0), (-50.0, 50.0)]


def given_something(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[N] −log P(written labels | image, as many labels are present), a sum over classes, and its derivative [N, C].

    `selection_nll` + log P(m ≥ k), for rows that have k written labels and an unknown one; m is the number of present
    ones among those that are not verified absent, for k = 1 P = 1 − Π_j (1 − p_j). Only images with a label have one to
    show, but the model's labels are independent, so that it also expects images without any; a likelihood that never
    hears of these makes up for it by a p that is too high, the more so the less sure p is. Rows of which every label is
    known keep their plain likelihood.

    >>> given_something(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))[0].exp()          # 1/P = 24/7, times 7/8
    tensor([3.0000], dtype=torch.float64)
    """
    nll, slope = selection_nll(logits, labels)
    shown = (labels > 0).any(1, keepdim=True) & (labels == 0).any(1, keepdim=True)
    possible = shown & (labels >= 0)
    wide = logits.double()
    nothing = F.softplus(wide).mul_(possible).sum(1, keepdim=True).clamp_(min=1e-300)  # −log Π (1 − p)
    several = (shown & ((labels > 0).sum(1, keepdim=True) > 1))[:, 0]
    chance = torch.expm1(-nothing).neg_().log_().mul_(shown)[:, 0]
    pull = wide.sigmoid().mul_(possible).div_(torch.expm1(nothing))
    if bool(several.any()):
        chance[several], pull[several] = _as_many(wide[several], labels[several])
    return nll + chance, slope + pull.to(slope.dtype)


def _as_many(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the log of the chance that as many labels are present as are written, or more, and its derivative [N, C].

    One class after the other: at least j are present if j − 1 were before and this one is, or if j were. Only sums of
    positive terms, so that small chances keep their digits.
    """
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        chances = z.sigmoid() * (labels >= 0)
        written = (labels > 0).sum(1)
        at_least = z.new_zeros(len(z), int(written.max()))  # of 1, 2, …
        for p in chances.split(1, 1):
            before = torch.cat([torch.ones_like(p), at_least[:, :-1]], 1)
            at_least = at_least * (1 - p) + before * p
        found = at_least.gather(1, written[:, None] - 1)[:, 0].clamp(min=1e-300).log()
        (pull,) = torch.autograd.grad(found.sum(), z)
    return found.detach(), pull


def most_likely(z: Tensor, y: Tensor, likelihood: Likelihood, every: bool = False) -> tuple[Floats, float]:
    """θ = (log a, b) of p = σ(a·z + b) under which the written labels are most likely, and their mean −log likelihood.

    A weak prior (log a and b normal around 0, with deviations 1 and 3) keeps a handful of rows from running away; with
    hundreds it is not felt. z: logits [N, C]; y: labels [N, C]. Rows without any label say nothing and are left out,
    unless somebody looked at `every` row.
    """
    from scipy.optimize import minimize

    z, y = telling(z, y, every)

    def objective(theta: Floats) -> tuple[float, Floats]:
        nll, own = _slopes(theta, z, y, likelihood)
        return (nll + 0.5 * float(theta @ PRIOR @ theta)) / len(z), (own.sum(0) + PRIOR @ theta) / len(z)

    starts = [np.zeros(2)]
    if likelihood is not selection_nll:
        starts.append(most_likely(z, y, selection_nll)[0])  # there can be two valleys
    found = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=BOUNDS) for start in starts]
    best: Floats = min(found, key=lambda result: float(result.fun)).x
    return best, _slopes(best, z, y, likelihood)[0] / len(z)


def calibrations(z: Tensor, y: Tensor, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats, int]:
    """θ̂ [2] by `given_something`, θ of bootstrap samples of the rows less θ̂ [draws, 2], and how many have a label."""
    z, y = telling(z, y)
    best, _ = most_likely(z, y, given_something)

    def slopes(theta: Floats) -> Floats:
        return _slopes(theta, z, y, given_something)[1]

    return best, bootstrap(best, slopes, PRIOR, draws, rng), len(z)


def bootstrap(
    best: Floats, slopes: Callable[[Floats], Floats], prior: Floats, draws: int, rng: np.random.Generator
) -> Floats:
    """θ of bootstrap samples of the rows, less θ̂ = `best` [k]: [draws, k].

    A sample in which the rows have the weights w has θ̂ − H⁻¹ Σ_n (w_n − 1) g_n: one step of Newton's with g_n the
    derivative of the row n (`slopes` has all, [n, k], at any θ), H the second derivative of all and of the prior.
    """
    steps = 1e-4 * np.eye(len(best))
    curvature = np.stack([(slopes(best + s) - slopes(best - s)).sum(0) for s in steps]) / 2e-4
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2 + prior)
    inverse = vectors / values.clip(PRIOR.diagonal().min()) @ vectors.T  # at a bound it may not be a minimum
    own = slopes(best)
    own = own[np.lexsort(own.T)]  # the order in which rows are given has no influence
    n = len(own)
    pulls = np.stack([(np.bincount(rng.integers(n, size=n), minlength=n) - 1) @ own for _ in range(draws)])
    return np.asarray(-pulls @ inverse)


def telling(z: Tensor, y: Tensor, every: bool = False) -> tuple[Tensor, Tensor]:
    """The rows that have a label, or `every` one if there is a label at all; logits in float64."""
    used = (y != 0).any(1)
    if not bool(used.any()):
        raise DataError(
            "no held-out row has a label, so nothing can be calibrated or chosen by them:"
            ' hold out more rows (in a recipe select.fraction), or set select.rule = "last"'
        )
    return (z.double(), y) if every else (z[used].double(), y[used])


def _slopes(theta: Floats, z: Tensor, y: Tensor, likelihood: Likelihood) -> tuple[float, Floats]:
    """The loss of all rows, and the derivative of each by θ [n, 2]."""
    a = math.exp(theta[0])
    nll, slope = likelihood(a * z + float(theta[1]), y)
    return float(nll.sum()), torch.stack([(slope * z).sum(1) * a, slope.sum(1)], 1).numpy()
