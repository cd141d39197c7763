"""Estimators against exhaustive enumeration, bounds against simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from adversariallm.core.rng import Rng
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.metrics import (
    best_of,
    expected_best_of_n,
    harmfulness,
    mean_bounds,
    quantile,
    success_at,
)
from adversariallm.evaluation.success import best_of_n
from adversariallm.evaluation.trials import trials_of

JUDGE = "refusal_prefix"


@pytest.mark.parametrize("size", range(1, 8))
def test_expected_best_of_n_equals_the_mean_over_all_subsets(size: int) -> None:
    values = Rng.root(size).child("values").numpy().random(size).round(1).tolist()
    for n in range(1, size + 1):
        subsets = list(itertools.combinations(values, n))
        exhaustive = sum(map(max, subsets)) / len(subsets)
        assert expected_best_of_n(values, n) == pytest.approx(exhaustive, abs=1e-12)


def test_expected_best_of_n_of_hits_is_best_of_n_also_for_many_samples() -> None:
    values = [1.0] * 7 + [0.0] * 993
    assert expected_best_of_n(values, 100) == pytest.approx(best_of_n(7, 1000, 100), rel=1e-9)
    with pytest.raises(ValueError, match="without bias"):
        expected_best_of_n([0.1], 2)


def test_harmfulness_averages_within_behaviors_first_and_bounds_the_unknown() -> None:
    documents = [
        fake_document([[0.2, 0.6, 0.4]], behavior="a"),
        fake_document([[0.8, None]], behavior="b"),
        fake_document([[None]], behavior="c"),
    ]
    got = harmfulness(trials_of(documents, JUDGE))
    assert got.value == pytest.approx((0.4 + 0.8) / 2)
    assert (got.n, got.left_out) == (2, 1)
    assert got.worst == pytest.approx((0.4 + 0.4 + 0.0) / 3)
    assert got.best == pytest.approx((0.4 + 0.9 + 1.0) / 3)


def test_best_of_leaves_out_behaviors_with_too_few_samples_and_counts_them() -> None:
    documents = [
        fake_document([[0.1, 0.5, 0.3]], behavior="a"),
        fake_document([[0.9, None, None]], behavior="b"),
    ]
    got = best_of(trials_of(documents, JUDGE), 2)
    assert got.value == pytest.approx((0.5 + 0.5 + 0.3) / 3)
    assert (got.n, got.left_out) == (1, 1)


def test_success_at_counts_steps_and_samples_by_enumeration() -> None:
    scores = [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    trials = trials_of([fake_document(scores)], JUDGE)
    table = np.array(scores)
    for steps, k in itertools.product((1, 2, 3), (1, 2, 3, 4)):
        chosen = list(itertools.combinations(range(4), k))
        exhaustive = np.mean([table[:steps, list(lanes)].max() for lanes in chosen])
        got = success_at(trials, k, steps=steps)
        assert got.value == pytest.approx(exhaustive)


def test_nothing_to_use_gives_none_and_the_count() -> None:
    got = best_of(trials_of([fake_document([[None]])], JUDGE), 1)
    assert (got.value, got.interval, got.n, got.left_out) == (None, None, 0, 1)


@pytest.mark.parametrize("mean", [0.02, 0.3, 0.9])
def test_mean_bounds_cover_whatever_the_distribution(mean: float) -> None:
    rng = Rng.root(1).child("bounds", int(mean * 100)).numpy()
    missed = 0
    for _ in range(300):
        interval = mean_bounds((rng.random(20) < mean).astype(float).tolist())
        missed += not interval.low <= mean <= interval.high
    assert missed / 300 <= 0.05


def test_mean_bounds_touch_the_ends_and_refuse_other_scales() -> None:
    assert mean_bounds([0.0] * 5).low == 0.0
    assert mean_bounds([1.0] * 5).high == 1.0
    assert mean_bounds([0.4]).low <= 0.4 <= mean_bounds([0.4]).high
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        mean_bounds([3.0])


def test_quantile_bounds_are_order_statistics_or_the_end_of_the_scale() -> None:
    values = [i / 100 for i in range(1, 100)]
    middle, interval = quantile(values, 0.5)
    assert middle == pytest.approx(0.5)
    assert interval.low in values and interval.high in values
    assert quantile([0.3, 0.4], 0.99)[1].high == 1.0
