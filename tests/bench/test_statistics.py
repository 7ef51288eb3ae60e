"""Against scipy, on random and on known cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from pluralis.bench.statistics import Difference, holm, paired_difference, summarise


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_paired_differences_are_those_of_scipy(count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = rng.normal(80, 1, count), rng.normal(79.5, 1, count)
    pairs = [(1200, n) for n in range(count)]
    found = paired_difference(dict(zip(pairs, a, strict=True)), dict(zip(pairs, b, strict=True)))
    expected = scipy.stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.95)
    assert found is not None
    assert found.count == count
    np.testing.assert_allclose([found.mean, found.low, found.high], [np.mean(a - b), low, high], rtol=1e-10)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    wide = paired_difference(dict(zip(pairs, a, strict=True)), dict(zip(pairs, b, strict=True)), level=0.99)
    assert wide is not None
    np.testing.assert_allclose([wide.low, wide.high], expected.confidence_interval(0.99), rtol=1e-10)


def test_pairs_are_runs_with_the_same_draw_and_seed() -> None:
    base = {(1200, 0): 10.0, (1200, 1): 20.0, (1201, 0): 99.0}
    found = paired_difference({(1200, 1): 21.0, (1200, 0): 13.0, (1200, 7): 50.0}, base)
    assert found is not None
    assert (found.count, found.mean) == (2, 2.0)


def test_too_few_pairs_and_no_doubt() -> None:
    assert paired_difference({(0, 0): 1.0}, {(0, 1): 1.0}) is None
    assert paired_difference({(0, 0): 3.0}, {(0, 0): 1.0}) == Difference(1, 2.0)
    same = {(0, 0): 1.0, (0, 1): 2.0}
    assert paired_difference(same, same) == Difference(2, 0.0)  # not a claim with p = 0 from two runs
    assert paired_difference({(0, 0): 2.0, (0, 1): 3.0}, same) == Difference(2, 1.0)
    thirds = {(0, seed): 0.1 * seed for seed in range(3)}
    assert paired_difference({key: value + 0.7 for key, value in thirds.items()}, thirds) == Difference(
        3,
        pytest.approx(0.7),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("draws", [(1, 5), (1, 5, 6), (1, 5, 6, 9)])
def test_several_draws_are_compared_by_their_means(draws: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    places = [(draw, seed) for draw in draws for seed in range(1 + draw % 3)]
    values, base = ({place: float(rng.normal()) for place in places} for _ in range(2))
    means = [np.mean([values[d, s] - base[d, s] for d, s in places if d == draw]) for draw in draws]
    expected = scipy.stats.ttest_1samp(means, 0)
    found = paired_difference(values, base)
    assert found is not None
    assert (found.count, found.draws) == (len(draws), len(draws))
    np.testing.assert_allclose(
        [found.mean, found.low, found.high, found.p],
        [np.mean(means), *expected.confidence_interval(), expected.pvalue],
        rtol=1e-9,
    )


def test_the_test_is_that_of_a_nested_analysis_of_variance() -> None:
    """F = mean square of the mean / mean square between draws, with 1 and draws − 1 degrees of freedom."""
    gains = np.random.default_rng(7).normal(0.3, 1.0, (3, 2))  # draws × seeds
    of_draws = gains.mean(1)
    between = 2 * ((of_draws - gains.mean()) ** 2).sum() / 2
    expected = scipy.stats.f.sf(gains.size * gains.mean() ** 2 / between, 1, 2)
    values = {(draw, seed): float(gains[draw, seed]) for draw in range(3) for seed in range(2)}
    found = paired_difference(values, dict.fromkeys(values, 0.0))
    assert found is not None
    assert found.p == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("draws", "seeds"), [(2, 3), (3, 2), (4, 3)])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_what_differs_between_draws_makes_no_false_claims(draws: int, seeds: int, shift: float) -> None:
    """A method that suits some draws better than others, or all alike: 5 % are claims, not up to 30 %."""
    rng = np.random.default_rng(0)
    claims = covered = 0
    for _ in range(1000):
        each = shift * rng.normal(size=(draws, 1)) + rng.normal(size=(draws, seeds))
        gains = {(draw, seed): float(each[draw, seed]) for draw in range(draws) for seed in range(seeds)}
        found = paired_difference(gains, dict.fromkeys(gains, 0.0))
        assert found is not None
        assert found.p is not None
        assert found.low is not None
        assert found.high is not None
        claims += found.p < 0.05
        covered += found.low < 0 < found.high
    assert 25 < claims < 75  # 50 expected, deviation 7
    assert covered == 1000 - claims


def test_means_and_deviations() -> None:
    values = list(np.random.default_rng(0).normal(80, 2, 7))
    found = summarise(values)
    assert found is not None
    assert found.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-12)
    one = summarise([3.0])
    assert one is not None
    assert one.deviation is None
    assert summarise([]) is None


def by_definition(ps: np.ndarray) -> list[float]:
    """Holm: the corrected value of the i-th smallest is the largest (m − j + 1) p_j of those up to it, at most 1."""
    order = np.argsort(ps, kind="stable")
    steps = [min(1.0, max((len(ps) - j) * ps[order[j]] for j in range(i + 1))) for i in range(len(ps))]
    return [steps[int(np.flatnonzero(order == place)[0])] for place in range(len(ps))]


def test_holm_by_its_definition_and_by_known_values() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 7, 20):
        ps = rng.random(count) ** 3
        np.testing.assert_allclose(holm(ps.tolist()), by_definition(ps), rtol=1e-12)
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.005]), [0.03, 0.04, 0.04, 0.02], rtol=1e-12)
    assert holm([]) == []
    assert all(math.isfinite(p) and p <= 1 for p in holm([1.0, 1.0, 0.9]))


def test_holm_keeps_false_claims_rare() -> None:
    """With ten true null hypotheses, fewer than about 5 % of the tables hold any claim at the level of 0.05."""
    rng = np.random.default_rng(2)
    claims = 0
    for _ in range(1000):
        ps = scipy.stats.ttest_1samp(rng.normal(size=(5, 10)), 0).pvalue
        claims += min(holm(ps.tolist())) < 0.05
    assert claims < 70  # 50 expected at most, deviation 7
