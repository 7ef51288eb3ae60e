"""Gauss rules for ∫₀¹ f(s) dπ(s) where f falls about as fast as e^{−κs}, with few nodes for every κ.

The weight e^{−κs} is part of the rule, so that the nodes lie where f is large and only f(s)·e^{κs}, which is nearly
flat, is left to be approximated by a polynomial. The product Π(1 − p_j s) with Σp near κ then needs 8 nodes for an
error under 1e-7, whether κ is 0 or a million, where Gauss-Legendre on the same interval needs 14 and more.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]

GRID = 161  # κ_k = e^{k/10} − 1: steps of a tenth, from 0 to nearly 9 million
_POINTS = 240  # of the fine rule that stands for the integral while a coarse one is built
_DECAY = 80.0  # beyond s = 80/κ less than e^−80 is left
_FURTHER = 6.0  # more of that for each further written label
MOST_WRITTEN = 32  # that have a rule of their own


def gauss_rules(kappa: Tensor, nodes: int, a: float, written: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """[b, nodes, 1] −s_i, w_i and (1−s_i)/s_i with ∫₀¹ f(s) dπ(s) ≈ Σ w_i f(s_i), for f about like e^{−κs}.

    π has the density a(1−s)^{a−1}, and with `written` [b], whole numbers k, (1−s)^{a−1} s^{k−1} / B(a, k); more than
    `MOST_WRITTEN` count as so many. kappa: [b] float64, rounded to the nearest of a grid; the rule does not mind a
    tenth. `w_i` contains e^{κ s_i}, for use on f as it is. A NaN, whose result will be NaN anyway, takes the last rule.

    >>> minus_s, w, _ = gauss_rules(torch.tensor([3.0], dtype=torch.float64), 8, 1.0)
    >>> round((w * (1 + minus_s) ** 3).sum().item(), 9)
    0.25
    """
    edges, rules = rule_table(nodes, a, kappa.device, written is not None)
    step = torch.bucketize(kappa, edges)
    if written is not None:
        step = step + (written.clamp(1, MOST_WRITTEN) - 1) * GRID
    minus_s, w, v = rules.index_select(0, step).unbind(1)
    return minus_s, w, v


def rule_table(nodes: int, a: float, device: torch.device, several: bool) -> tuple[Tensor, Tensor]:
    """[GRID − 1] where one κ ends and the next begins, and [GRID, 3, nodes, 1] −s, w and (1−s)/s.

    The rule of κ is number ⌊10 log(1+κ) + 1/2⌋. With `several` there are [MOST_WRITTEN · GRID, 3, nodes, 1], those of
    one written label first.
    """
    return _rules(nodes, a, device, several)


# What `torch.compiler.assume_constant_result` does; that would import the whole compiler, which takes seconds.
rule_table._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _rules(nodes: int, a: float, device: torch.device, several: bool) -> tuple[Tensor, Tensor]:
    counts = range(1, MOST_WRITTEN + 1) if several else (1,)
    rules = np.concatenate([_of_count(nodes, a, count) for count in counts])
    edges = np.expm1(np.arange(1, GRID) / 10 - 0.05)
    return torch.from_numpy(edges).to(device), torch.from_numpy(rules).to(device)


def _of_count(nodes: int, a: float, written: int) -> Array:
    """[GRID, 3, nodes, 1] −s, w and (1−s)/s for one number of written labels."""
    kappa = np.expm1(np.arange(GRID) / 10)
    x, mass = (np.stack(parts) for parts in zip(*(_fine(float(k), a, written) for k in kappa), strict=True))
    mass *= np.exp(-kappa[:, None] * x)
    s, w = _gauss(x, mass, nodes)
    w *= np.exp(kappa[:, None] * s)
    w[0] = _of_mass_one(w[0])
    return np.stack([-s, w, (1 - s) / s], 1)[..., None]


def _of_mass_one(w: Array) -> Array:
    """The weights at κ = 0 as multiples of 2^-50 with the sum 1, in whatever order: where no p is left, log 1 is 0."""
    w = np.round(w * 2.0**50) / 2.0**50
    w[w.argmax()] += 1 - w.sum()
    return w


def _fine(kappa: float, a: float, written: int) -> tuple[Array, Array]:
    """Points and masses that integrate smooth functions against π, as far as e^{−κs} leaves anything."""
    rate, decay = kappa + max(a - 1, 0.0), _DECAY + _FURTHER * (written - 1)
    if rate <= decay:
        x, mass = _jacobi(a)
    else:
        x, w = _jacobi(1.0)
        reach = decay / rate
        x, mass = reach * x, reach * w * a * (1 - reach * x) ** (a - 1)
    if written == 1:
        return x, mass
    scale = math.lgamma(a + written) - math.lgamma(a + 1) - math.lgamma(written)  # of 1 / (a B(a, k))
    return x, mass * np.exp((written - 1) * np.log(x) + scale)


@cache
def _jacobi(a: float) -> tuple[Array, Array]:
    """The Gauss-Jacobi rule on [0, 1] for the weight a(1−s)^{a−1}, whose mass is 1, from its three-term recurrence."""
    b = a - 1
    k = np.arange(1, _POINTS)
    centre = np.r_[-b / (b + 2), -(b**2) / ((2 * k + b) * (2 * k + b + 2))]
    width = 4 * k**2 * (k + b) ** 2 / ((2 * k + b) ** 2 * (2 * k + b + 1) * (2 * k + b - 1))
    width[0] = 4 * (1 + b) / ((2 + b) ** 2 * (3 + b))  # the common factor 1 + b cancelled, which may be near 0
    s, first = np.linalg.eigh(_tridiagonal(centre[None], np.sqrt(width)[None]))
    return (s[0] + 1) / 2, first[0, 0] ** 2


def _gauss(x: Array, mass: Array, nodes: int) -> tuple[Array, Array]:
    """Gauss rules [G, nodes] of the discrete measures with masses [G, N] at x [G, N] (Stieltjes; Golub and Welsch)."""
    before, now = np.zeros_like(x), np.ones_like(x) / np.sqrt(mass.sum(1, keepdims=True))
    centres: list[Array] = []
    widths: list[Array] = []
    for _ in range(nodes):
        centre = (mass * x * now**2).sum(1, keepdims=True)
        next_ = (x - centre) * now - (widths[-1] * before if widths else 0.0)
        width = np.sqrt((mass * next_**2).sum(1, keepdims=True))
        before, now = now, next_ / width
        centres.append(centre)
        widths.append(width)
    s, first = np.linalg.eigh(_tridiagonal(np.hstack(centres), np.hstack(widths)[:, :-1]))
    return s, mass.sum(1, keepdims=True) * first[:, 0] ** 2


def _tridiagonal(centres: Array, widths: Array) -> Array:
    n = centres.shape[1]
    matrix = np.zeros((len(centres), n, n))
    matrix[:, np.arange(n), np.arange(n)] = centres
    matrix[:, np.arange(n - 1), np.arange(1, n)] = matrix[:, np.arange(1, n), np.arange(n - 1)] = widths
    return matrix
