"""Intervals against scipy's own, and their coverage computed exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from adversariallm.core.rng import Rng
from adversariallm.evaluation.intervals import (
    clopper_pearson,
    clustered_rate,
    mean_interval,
    wilson,
)


@pytest.mark.parametrize("n", [1, 2, 10, 40, 300])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_wilson_and_clopper_pearson_equal_scipy(n: int, level: float) -> None:
    for hits in range(0, n + 1, max(1, n // 7)):
        test = stats.binomtest(hits, n)
        for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
            expected = test.proportion_ci(level, method=method)
            got = ours(hits, n, level)
            assert got.low == pytest.approx(expected.low, abs=1e-10)
            assert got.high == pytest.approx(expected.high, abs=1e-10)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.37, 0.5, 0.98])
@pytest.mark.parametrize("n", [10, 40, 300])
def test_clopper_pearson_never_covers_less_than_nominal(n: int, rate: float) -> None:
    covered = 0.0
    for hits in range(n + 1):
        interval = clopper_pearson(hits, n)
        if interval.low <= rate <= interval.high:
            covered += float(stats.binom.pmf(hits, n, rate))
    assert covered >= 0.95


@pytest.mark.parametrize("hits", [0, 5])
def test_intervals_of_all_or_nothing_touch_the_end_and_keep_a_width(hits: int) -> None:
    for interval in (wilson(hits, 5), clopper_pearson(hits, 5), clustered_rate([[hits / 5]] * 5)):
        assert (interval.low == 0.0) if hits == 0 else (interval.high == 1.0)
        assert interval.high - interval.low > 0.3


@pytest.mark.parametrize(
    ("hits", "n", "level", "said"),
    [(0, 0, 0.95, "at least one"), (3, 2, 0.95, "0 to n"), (1, 2, 95, "between 0 and 1")],
)
def test_impossible_counts_are_refused(hits: int, n: int, level: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wilson(hits, n, level)


def test_one_trial_per_cluster_is_the_plain_binomial_interval() -> None:
    values = [1.0, 0.0, 0.0, 1.0, 0.0]
    assert clustered_rate([[v] for v in values]) == wilson(2, 5)


def test_perfectly_dependent_samples_add_nothing_and_independent_ones_do() -> None:
    same = [[1.0] * 20, [0.0] * 20] * 6
    wide = clustered_rate(same)
    plain = wilson(6, 12)
    assert wide.low == pytest.approx(plain.low)
    mixed = [[1.0, 0.0] * 10] * 6 + [[1.0] * 9 + [0.0] * 11] * 6
    narrow = clustered_rate(mixed)
    assert narrow.high - narrow.low < 0.6 * (wide.high - wide.low)


def test_clustered_rate_covers_when_behaviors_differ() -> None:
    rng = Rng.root(0).child("coverage").numpy()
    n, samples, repeats = 30, 8, 400
    covered = 0
    for _ in range(repeats):
        rates = rng.beta(0.8, 1.6, size=n)
        clusters = (rng.random((n, samples)) < rates[:, None]).astype(float).tolist()
        interval = clustered_rate(clusters)
        covered += interval.low <= 0.8 / 2.4 <= interval.high
    share = covered / repeats
    assert 0.95 - 4 * math.sqrt(0.95 * 0.05 / repeats) < share


def test_empty_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="unscored"):
        clustered_rate([[1.0], []])


def test_mean_interval_is_close_to_students_where_that_is_right() -> None:
    values = Rng.root(0).child("scores").numpy().beta(4, 4, size=60).tolist()
    low, high = stats.t.interval(0.95, 59, np.mean(values), stats.sem(values))
    got = mean_interval(values)
    assert (got.low, got.high) == pytest.approx((low, high), abs=0.005)


def test_mean_interval_never_has_zero_width_and_holds_for_rare_events() -> None:
    assert mean_interval([0.0] * 10).high > 0.2
    assert mean_interval([0.5]).low < 0.2
    rng = Rng.root(0).child("rare").numpy()
    held = 0
    for _ in range(300):
        interval = mean_interval(rng.beta(0.02, 0.98, size=10).tolist())
        held += interval.low <= 0.02 <= interval.high
    assert held / 300 > 0.93
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        mean_interval([1.5])


def test_binary_values_give_the_binomial_interval() -> None:
    assert mean_interval([1.0, 0.0, 0.0, 1.0, 0.0]) == wilson(2, 5)
