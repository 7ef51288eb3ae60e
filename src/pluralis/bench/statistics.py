"""Means, spreads and paired differences, with a correction for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, stdev

Pair = tuple[int, int]
"""What two runs share: the draw of the labels and the seed."""
_SAME = 1e-9  # percent points by which equal differences may differ, as numbers are rounded


@dataclass(frozen=True)
class Summary:
    """Of some runs; there is no standard deviation of one."""

    count: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Difference:
    """Between pairs of runs: mean, confidence interval and p of the paired t-test.

    There is neither an interval nor p of a single pair, nor where all pairs differ by the same.
    """

    count: int  # of pairs, or of draws
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    draws: int = 1  # of the labels, among the pairs


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

    Runs that share a draw of the labels are not independent of each other: from two draws on d is the mean of a draw's
    pairs and n the number of draws. Where all draws have as many seeds, this is the exact test of a nested design,
    whatever draws and seeds within them have of the spread; an effect of a seed that all draws share stays in it. Of
    one draw n is the number of pairs, and the interval holds for it alone.

    >>> paired_difference({(1200, 0): 3.0, (1200, 1): 4.0}, {(1200, 0): 1.0, (1200, 1): 2.0})
    Difference(count=2, mean=2.0, low=None, high=None, p=None, draws=1)
    """
    from scipy.special import stdtr, stdtrit

    by_draw: dict[int, list[float]] = {}
    for (draw, seed), value in values.items():
        if (draw, seed) in baseline:
            by_draw.setdefault(draw, []).append(value - baseline[draw, seed])
    draws = len(by_draw)
    gains = [fmean(each) for each in by_draw.values()] if draws > 1 else list(chain(*by_draw.values()))
    if not gains:
        return None
    count, mean = len(gains), fmean(gains)
    if count == 1 or max(gains) - min(gains) <= _SAME:
        return Difference(count, mean, draws=draws)
    error = stdev(gains) / math.sqrt(count)
    reach = float(stdtrit(count - 1, (1 + level) / 2)) * error
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Difference(count, mean, mean - reach, mean + reach, p, draws)


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
