"""Budgets read off curves, and splits of a budget against a search by hand."""

from __future__ import annotations

import numpy as np
import pytest

from adversariallm.core.rng import Rng
from adversariallm.evaluation.budgets import area, best_split, budget_for, largest_common_budget
from adversariallm.evaluation.curves import success_curve
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.trials import Trial, trials_of

JUDGE = "refusal_prefix"


def _won_at(steps: list[int], total: int = 10) -> list[Trial]:
    return trials_of(
        [
            fake_document([[float(s >= won)] for s in range(total)], behavior=f"b{i}")
            for i, won in enumerate(steps)
        ],
        JUDGE,
    )


def test_budget_for_a_rate_is_the_order_statistic_of_the_winning_steps() -> None:
    steps = [0, 1, 1, 3, 4, 6, 7, 8, 9, 9]
    curve = success_curve(_won_at(steps))
    for k, step in enumerate(sorted(steps), start=1):
        assert budget_for(curve, k / 10).value == step
    needed = budget_for(curve, 0.5)
    assert needed.low is not None and needed.high is not None
    assert needed.low <= 4 <= needed.high


def test_a_rate_never_reached_has_no_budget_rather_than_a_large_one() -> None:
    curve = success_curve(_won_at([0, 99, 99, 99]))
    assert budget_for(curve, 0.5).value is None
    assert budget_for(curve, 1.0).high is None
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        budget_for(curve, 50)


def test_area_is_the_mean_of_the_stairs() -> None:
    curve = success_curve(_won_at([0, 5]))
    grid = np.arange(0, 9, 0.01)
    stairs = [(0.5 + 0.5 * (x >= 5)) for x in grid]
    assert area(curve) == pytest.approx(np.mean(stairs), abs=1e-3)
    assert area(curve, limit=5) == pytest.approx(0.5)
    assert area(success_curve([])) is None


def test_a_simultaneous_band_contains_the_pointwise_one_here() -> None:
    trials = _won_at([0, 1, 1, 3, 4, 6, 7, 8, 9, 9])
    point, joint = success_curve(trials), success_curve(trials, band="simultaneous")
    assert (joint.low <= point.low).all() and (joint.high >= point.high).all()
    assert (point.band, joint.band) == ("pointwise", "simultaneous")


def test_best_split_finds_the_planted_optimum() -> None:
    # Step 0 never works, step 1 for one sample in four, step 2 always.
    scores = [[0.0] * 8, [1.0, 0.0, 0.0, 0.0] * 2, [1.0] * 8]
    trials = trials_of(
        [fake_document(scores, behavior=f"b{i}", flops=1000) for i in range(10)], JUDGE
    )
    rng = Rng.root(0).child("split")
    poor, middle = best_split(trials, [1500.0, 2800.0], rng)
    assert (poor.step, poor.value) == (0, 0.0)
    assert (middle.step, middle.samples) == (1, 8)
    assert middle.value == pytest.approx(1.0)
    one = best_split(trials, [2100.0], rng)[0]
    assert (one.step, one.samples) == (1, 1)
    assert one.value == pytest.approx(0.25)


def test_best_split_says_when_nothing_is_affordable() -> None:
    trials = trials_of([fake_document([[1.0]], flops=1000)], JUDGE)
    assert best_split(trials, [1.0], Rng.root(0))[0].step is None


def test_best_split_does_not_report_the_luck_of_the_choice() -> None:
    rng = Rng.root(5).child("noise").numpy()
    gaps = []
    for r in range(10):
        documents = [
            fake_document(
                [[float(rng.random() < 0.3)] for _ in range(30)], behavior=f"b{i}", flops=1
            )
            for i in range(10)
        ]
        split = best_split(trials_of(documents, JUDGE), [1e9], Rng.root(r))[0]
        assert split.value is not None and split.chosen_on is not None
        gaps.append((split.value, split.chosen_on))
    held_out, chosen = np.mean(gaps, axis=0)
    assert abs(held_out - 0.3) < 0.1
    assert chosen > 0.45


def test_largest_common_budget_is_what_everybody_spent() -> None:
    a = trials_of([fake_document([[0.0]] * 5, queries=10)], JUDGE)
    b = trials_of([fake_document([[0.0]] * 3, queries=10)], JUDGE)
    assert largest_common_budget([a, b], "queries", "search") == 30
    with pytest.raises(ValueError, match="no common budget"):
        largest_common_budget([[]], "queries", "search")
