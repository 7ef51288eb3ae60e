"""The losses in plain numpy, from their formulas: `reference(z, y, frozen)`, see `Spec`."""

from __future__ import annotations

import math

import numpy as np


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def up(z):
    """−log p."""
    return np.log(1 + np.exp(-z))


def down(z):
    """−log(1−p)."""
    return np.log(1 + np.exp(z))


def by_label(y, present, absent, unknown):
    return np.select([y > 0, y < 0], [present, absent], unknown)


def bce(z, y, frozen):
    return by_label(y, up(z), down(z), 0 * z)


def an(z, y, frozen):
    return by_label(y, up(z), down(z), down(z))


def dw(z, y, frozen, weight):
    return by_label(y, up(z), down(z), weight * down(z))


def wan(z, y, frozen):
    return dw(z, y, frozen, 1 / (y.shape[1] - 1))


def smoothed(z, y, frozen, present, absent, unknown):
    """Cross-entropy against the three targets."""
    t = by_label(y, present, absent, unknown)
    return t * up(z) + (1 - t) * down(z)


def em(z, y, frozen, alpha):
    p = sigmoid(z)
    return by_label(y, up(z), down(z), -alpha * (p * up(z) + (1 - p) * down(z)))


def partial_bce(z, y, frozen, alpha, beta, gamma):
    share = (y != 0).mean(1, keepdims=True)
    return (alpha * share**gamma + beta) * bce(z, y, frozen)


def epr(z, y, frozen, k):
    return bce(z, y, frozen).sum() / y.size + ((sigmoid(z).sum() / len(y) - k) / y.shape[1]) ** 2


def focal(z, y, frozen, gamma, alpha):
    p = sigmoid(z)
    absent = (1 - alpha) * p**gamma * down(z)
    return by_label(y, alpha * (1 - p) ** gamma * up(z), absent, absent)


def asl(z, y, frozen, gamma_pos, gamma_neg, margin, held=False):
    p, constant = sigmoid(z), sigmoid(frozen)
    above = constant > margin
    pm = np.where(above, p - margin, 0)
    weigh_p, weigh_pm = (constant, np.where(above, constant - margin, 0)) if held else (p, pm)
    absent = -(weigh_pm**gamma_neg) * np.log(1 - pm)
    return by_label(y, (1 - weigh_p) ** gamma_pos * up(z), absent, absent)


def hill(z, y, frozen, lam, margin, gamma):
    p, pm = sigmoid(z), sigmoid(z - margin)
    return by_label(y, (1 - pm) ** gamma * up(z - margin), down(z), (lam - p) * p**2)


def splc(z, y, frozen, tau=0.6, margin=1.0, gamma=2.0, correct=True, variant="released"):
    p, pm = sigmoid(z), sigmoid(z - margin)
    present = (1 - pm) ** gamma * up(z - margin)
    likely = correct & (sigmoid(frozen) > tau)
    if variant == "hill":
        unknown = np.where(likely, present, (1.5 - p) * p**2)
    else:
        unknown = np.where(likely, (1 - p) ** gamma * up(z), p**gamma * down(z))
    return by_label(y, present, down(z), unknown)


def largest(y, frozen, k):
    """The k unknown entries with the largest loss −log(1−p)."""
    chosen = np.zeros(y.shape, bool)
    order = np.argsort(np.where(y == 0, -down(frozen), np.inf), axis=None)
    chosen.flat[order[: min(k, np.count_nonzero(y == 0))]] = True
    return chosen


def ll(z, y, frozen, share, flip):
    chosen = largest(y, frozen, math.ceil(y.size * share))
    return np.where(chosen, up(z) if flip else 0 * z, an(z, y, frozen))


def csl(z, y, frozen, gammas, likely, common=None):
    p = sigmoid(z)
    ignored = largest(y, frozen, likely * len(y))
    if common is not None:
        ignored |= common
    unknown = np.where(ignored, 0 * z, p ** gammas[2] * down(z))
    return by_label(y, (1 - p) ** gammas[0] * up(z), p ** gammas[1] * down(z), unknown)


def pu(z, y, frozen, prior, bounded, written=None):
    """Class by class, with the means written out; `written` is the share of all images that has the label."""
    total = 0
    for c in range(y.shape[1]):
        positive = y[:, c] > 0
        n = len(y)
        first = second = second_frozen = 0
        if positive.any():
            expected = positive.sum() if written is None else n * written
            first = prior * up(z[positive, c]).sum() / expected
            second = prior * down(z[positive, c]).sum() / expected
            second_frozen = prior * down(frozen[positive, c]).sum() / expected
        open_rows = y[:, c] >= 0
        absent = down(z[~open_rows, c]).sum() / n
        rest = down(z[open_rows, c]).sum() / n - second
        if bounded and down(frozen[open_rows, c]).sum() / n - second_frozen < 0:
            rest = 0
        total = total + first + absent + rest
    return total / y.shape[1]


def gr(z, y, frozen, w, b, mu, sigma, q1, q2, q3):
    def robust(log_p, q):
        return -log_p if q == 0 else -np.expm1(q * log_p) / q

    constant = sigmoid(frozen)
    k = sigmoid(w * constant + b)
    v = np.exp(-((constant - mu) ** 2) / (2 * sigma**2))
    unknown = v * (k * robust(-up(z), q2) + (1 - k) * robust(-down(z), q3))
    return by_label(y, robust(-up(z), q1), robust(-down(z), q1), unknown)


def pick(z, y, frozen, a=1.0, absent=False):
    """[N] from the distribution of the number m of hidden present labels: Σ P(m)·E[t^m], t of Beta(a, k written ones).

    E[t^m] = Π_{i<m} (a+i)/(a+k+i), for a = 1 one of the ways to choose k of m + k.
    """
    losses = np.zeros(len(y), z.dtype)
    for n in range(len(y)):
        written, unknown = (y[n] > 0).any(), y[n] == 0
        p, count = sigmoid(z[n]), np.ones(1, z.dtype)
        for value in p[unknown] if written else []:
            count = np.convolve(count, [1 - value, value])
        more, k = np.arange(len(count) - 1), min((y[n] > 0).sum(), 32)
        integral = (count * np.cumprod(np.r_[1.0, (a + more) / (a + k + more)])).sum()
        losses[n] = up(z[n][y[n] > 0]).sum() + down(z[n][y[n] < 0]).sum() - np.log(integral)
        if absent and not written:
            losses[n] += down(z[n][unknown]).sum()
    return losses


def written_at_a_rate(z, y, frozen, rate, absent=False):
    """[N]"""
    looked = (y > 0).any(1, keepdims=True) | absent
    return by_label(y, up(z), down(z), np.where(looked, -np.log(1 - rate * sigmoid(z)), 0 * z)).sum(1)
