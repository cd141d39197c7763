"""Variance components, bootstrap, whole-curve bands and judge correction, checked by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adversariallm.core.rng import Rng
from adversariallm.evaluation.intervals import clopper_pearson
from adversariallm.evaluation.uncertainty import (
    JudgeQuality,
    correct_for_judge,
    hierarchical_bootstrap,
    simultaneous_band,
    simultaneous_level,
    spread,
)


def _nested(
    rng: np.random.Generator, behaviors: int, seeds: int, samples: int
) -> list[list[list[float]]]:
    """Normal effects with variances 4 (behaviors), 1 (seeds), 0.25 (samples)."""
    b = rng.normal(0, 2, size=(behaviors, 1, 1))
    s = rng.normal(0, 1, size=(behaviors, seeds, 1))
    values: list[list[list[float]]] = (
        b + s + rng.normal(0, 0.5, size=(behaviors, seeds, samples))
    ).tolist()
    return values


def test_spread_recovers_planted_variance_components() -> None:
    rng = Rng.root(0).child("spread").numpy()
    n, seeds, samples = 60, 3, 4
    found = [spread(_nested(rng, n, seeds, samples)) for _ in range(60)]
    expected = [
        4 / n + 1 / (n * seeds) + 0.25 / (n * seeds * samples),
        0.25 / (n * seeds * samples),
        1 / (n * seeds) + 0.25 / (n * seeds * samples),
    ]
    for name, value in zip(("error", "sampling_error", "seed_error"), expected, strict=True):
        assert np.mean([getattr(f, name) ** 2 for f in found]) == pytest.approx(value, rel=0.12)


def test_spread_without_replication_is_not_a_number_rather_than_zero() -> None:
    got = spread([[[0.0]], [[1.0]]])
    assert math.isnan(got.sampling_error) and math.isnan(got.seed_error)
    assert got.error == pytest.approx(0.5)


def test_bootstrap_agrees_with_the_closed_form_and_repeats_itself() -> None:
    clusters = _nested(Rng.root(3).child("data").numpy(), 80, 2, 3)
    rng = Rng.root(0).child("bootstrap")
    got = hierarchical_bootstrap(clusters, rng, resamples=4000)
    closed = spread(clusters)
    half = (got.high - got.low) / 2
    assert half == pytest.approx(1.96 * closed.error, rel=0.2)
    assert got == hierarchical_bootstrap(clusters, rng, resamples=4000)


def test_simultaneous_band_is_wider_than_one_point_and_exact_for_one_behavior() -> None:
    assert simultaneous_level(1) == pytest.approx(0.95, abs=0.002)
    assert 0.95 < simultaneous_level(8) < simultaneous_level(40) < 1
    low, high = simultaneous_band(np.array([0.0, 0.5, 1.0]), 40)
    pointwise = clopper_pearson(20, 40)
    assert low[1] < pointwise.low and high[1] > pointwise.high
    assert (low[0], high[2]) == (0.0, 1.0)


def test_simultaneous_band_holds_for_the_whole_curve() -> None:
    rng = Rng.root(0).child("band").numpy()
    n, repeats, missed = 12, 150, 0
    for _ in range(repeats):
        first_win = np.sort(rng.random(n))
        rank = np.arange(n + 1) / n
        low, high = simultaneous_band(rank, n)
        # The true curve is the identity: check just before and at every jump.
        inside = (low[1:] <= first_win).all() and (first_win <= high[:-1]).all()
        missed += not inside
    assert missed / repeats <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / repeats)


def test_a_perfect_judge_needs_no_correction_and_a_noisy_one_is_undone() -> None:
    perfect = correct_for_judge(30, 100, JudgeQuality(10_000, 10_000, 10_000, 10_000))
    assert perfect.value == pytest.approx(0.3)
    noisy = correct_for_judge(34, 100, JudgeQuality(90, 100, 90, 100))
    assert noisy.value == pytest.approx((0.34 - 0.1) / 0.8)
    assert noisy.interval.high - noisy.interval.low > perfect.interval.high - perfect.interval.low


def test_correction_covers_when_the_judge_is_itself_estimated() -> None:
    rng = Rng.root(0).child("judge").numpy()
    true, se, sp, n, labelled, repeats = 0.2, 0.85, 0.9, 60, 50, 800
    covered = 0
    for _ in range(repeats):
        hits = int(rng.binomial(n, true * se + (1 - true) * (1 - sp)))
        quality = JudgeQuality(
            int(rng.binomial(labelled, se)), labelled, int(rng.binomial(labelled, sp)), labelled
        )
        interval = correct_for_judge(hits, n, quality).interval
        covered += interval.low <= true <= interval.high
    assert covered / repeats > 0.95 - 0.015 - 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_impossible_corrections_are_cut_and_said() -> None:
    assert correct_for_judge(1, 100, JudgeQuality(90, 100, 80, 100)).cut
    with pytest.raises(ValueError, match="no better than chance"):
        correct_for_judge(10, 100, JudgeQuality(50, 100, 50, 100))
    with pytest.raises(ValueError, match="both kinds"):
        correct_for_judge(10, 100, JudgeQuality(0, 0, 50, 100))
