"""Means, spreads and paired differences, with a correction for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

Pair = tuple[int, int]
"""What two runs share: the draw of the labels and the seed."""


@dataclass(frozen=True)
class Summary:
    """Of some runs; there is no standard deviation of one."""

    count: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Difference:
    """Between pairs of runs: mean, confidence interval and p of the paired t-test; None for a single pair."""

    count: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean and standard deviation (with n − 1).

    >>> summarise([1.0, 2.0, 4.5])
    Summary(count=3, mean=2.5, deviation=1.8027756377319946)
    """
    if not values:
        return None
    return Summary(len(values), fmean(values), stdev(values) if len(values) > 1 else None)


def paired_difference(
    values: Mapping[Pair, float], baseline: Mapping[Pair, float], level: float = 0.95
) -> Difference | None:
    """`values` less `baseline`, over what both have.

        d̄ ± t_{n−1, (1+level)/2} · s_d / √n

    Differences that are all the same leave no doubt: p is 1 where they are 0, and 0 otherwise.
    """
    from scipy.special import stdtr, stdtrit

    gains = [value - baseline[key] for key, value in values.items() if key in baseline]
    if not gains:
        return None
    count, mean = len(gains), fmean(gains)
    if count == 1:
        return Difference(count, mean)
    error = stdev(gains) / math.sqrt(count)
    reach = float(stdtrit(count - 1, (1 + level) / 2)) * error
    if error == 0:
        return Difference(count, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Difference(count, mean, mean - reach, mean + reach, p)


def holm(ps: Sequence[float]) -> list[float]:
    """p values corrected for their number (Holm 1979): the chance of any false claim among them stays below the level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = least
    return corrected
