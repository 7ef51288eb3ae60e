"""A calibration by the written labels alone, given that an image has a label at all; and how surely it is known."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.errors import DataError
from pluralis.evaluate import calibrate
from pluralis.losses.selection import selection_nll

Floats = npt.NDArray[np.float64]

_PRIOR = np.diag([1.0, 1 / 9])  # of (log a, b), as weak as that of `calibrate`: deviations 1 and 3 around 0
_BOUNDS = [(-6.0, 6.0), (-50.0, 50.0)]


def calibrations(z: Tensor, y: Tensor, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats, int]:
    """θ̂ [2], θ of bootstrap samples of the rows less θ̂ [draws, 2], and the number of rows that have a label.

    θ = (log a, b) of p = σ(a·z + b), most likely by `given_something` and a weak prior. A sample in which the rows have
    the weights w has θ̂ − H⁻¹ Σ_n (w_n − 1) g_n: one step of Newton's with g_n the derivative of the row n, H the second
    derivative of all. z: logits [N, C] in float64; y: labels [N, C]. Rows without any label are left out.
    """
    from scipy.optimize import minimize

    used = (y != 0).any(1)
    if not bool(used.any()):
        raise DataError("no held-out row has a label, so nothing can be calibrated; hold out more rows")
    z, y = z[used], y[used]

    def slopes(theta: Floats) -> tuple[float, Floats]:
        """The loss of all rows, and the derivative of each by θ [n, 2]."""
        a = math.exp(theta[0])
        nll, slope = given_something(a * z + float(theta[1]), y)
        return float(nll.sum()), torch.stack([(slope * z).sum(1) * a, slope.sum(1)], 1).numpy()

    def objective(theta: Floats) -> tuple[float, Floats]:
        nll, own = slopes(theta)
        return (nll + 0.5 * float(theta @ _PRIOR @ theta)) / len(z), (own.sum(0) + _PRIOR @ theta) / len(z)

    plain, _ = calibrate(z, y)
    starts = np.zeros(2), np.array([math.log(plain.a), plain.b])  # there can be two valleys
    found = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=_BOUNDS) for start in starts]
    best: Floats = min(found, key=lambda result: float(result.fun)).x

    steps = 1e-4 * np.eye(2)
    curvature = np.stack([(slopes(best + s)[1] - slopes(best - s)[1]).sum(0) for s in steps]) / 2e-4
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2 + _PRIOR)
    inverse = vectors / values.clip(_PRIOR.diagonal().min()) @ vectors.T  # at a bound it may not be a minimum
    own = slopes(best)[1]
    own = own[np.lexsort(own.T)]  # the order in which rows are given has no influence
    n = len(own)
    pulls = np.stack([(np.bincount(rng.integers(n, size=n), minlength=n) - 1) @ own for _ in range(draws)])
    return best, -pulls @ inverse, n


def given_something(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[N] −log P(written labels | image, some label is present), a sum over classes, and its derivative [N, C].

    `selection_nll` + log(1 − Π_j (1 − p_j)) over the labels that are not verified absent, for rows that have a written
    and an unknown label. Only images with a label have one to show, but the model's labels are independent, so that
    it also expects images without any; a likelihood that never hears of these makes up for it by a p that is too high,
    the more so the less sure p is. Rows of which every label is known keep their plain likelihood.

    >>> given_something(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))[0].exp()          # 1/P = 24/7, times 7/8
    tensor([3.0000], dtype=torch.float64)
    """
    nll, slope = selection_nll(logits, labels)
    shown = (labels > 0).any(1, keepdim=True) & (labels == 0).any(1, keepdim=True)
    possible = shown & (labels >= 0)
    wide = logits.double()
    nothing = F.softplus(wide).mul_(possible).sum(1, keepdim=True).clamp_(min=1e-300)  # −log Π (1 − p)
    nll = nll + torch.expm1(-nothing).neg_().log_().mul_(shown)[:, 0]
    return nll, slope + wide.sigmoid().mul_(possible).div_(torch.expm1(nothing)).to(slope.dtype)
