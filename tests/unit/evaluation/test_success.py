"""Rates by hand-counted examples and estimators against exhaustive enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from adversariallm.evaluation.facts import (
    distinct_labels,
    group_by_setting,
    judge_view,
    judges_of,
    setting_of,
)
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.intervals import wilson
from adversariallm.evaluation.success import best_of_n, best_so_far, rate, selected_steps
from adversariallm.evaluation.trials import trials_of


def test_attack_success_counts_any_step_and_the_last_step_apart() -> None:
    documents = [
        fake_document([[0.0], [1.0], [0.0]], behavior="won early"),
        fake_document([[0.0], [0.0], [0.0]], behavior="never"),
        fake_document([[0.0], [0.0], [0.5]], behavior="at the threshold"),
    ]
    trials = trials_of(documents, "refusal_prefix")
    assert rate(trials, "any").value == pytest.approx(2 / 3)
    assert rate(trials, "last").value == pytest.approx(1 / 3)
    assert rate(trials, "any").interval == wilson(2, 3)


def test_unscored_is_never_a_zero_and_always_counted() -> None:
    documents = [
        fake_document([[1.0]], behavior="hit"),
        fake_document([[None]], behavior="unknown"),
        fake_document([[0.0], [None]], behavior="half known"),
        fake_document([[0.0]], behavior="miss"),
    ]
    got = rate(trials_of(documents, "refusal_prefix"))
    assert (got.n, got.unscored, got.unscored_completions) == (3, 1, 2)
    assert got.value == pytest.approx(1 / 3)
    assert got.worst == pytest.approx(1 / 4)
    assert got.best == pytest.approx(3 / 4)


def test_all_unscored_gives_no_rate_but_counts() -> None:
    got = rate(trials_of([fake_document([[None, None]])], "refusal_prefix"))
    assert (got.value, got.interval, got.n, got.unscored_completions) == (None, None, 0, 2)
    assert (got.worst, got.best) == (0.0, 1.0)


def test_a_run_that_a_judge_never_saw_is_unscored_under_it() -> None:
    documents = [
        fake_document([[1.0]], behavior="a"),
        fake_document([[1.0]], behavior="b", judge=None),
    ]
    assert judges_of(documents) == ["refusal_prefix"]
    got = rate(trials_of(documents, "refusal_prefix"))
    assert (got.n, got.unscored) == (1, 1)


def test_not_a_number_counts_as_unscored() -> None:
    trial = trials_of([fake_document([[math.nan]])], "refusal_prefix")[0]
    assert trial.unscored == 1


def test_over_refusal_reads_compliance_the_other_way() -> None:
    documents = [
        fake_document([[1.0]], behavior="answered", harmful=False),
        fake_document([[0.0]], behavior="refused", harmful=False),
        fake_document([[0.5]], behavior="at the threshold: answered", harmful=False),
        fake_document([[None]], behavior="unknown", harmful=False),
    ]
    trials = trials_of(documents, "refusal_prefix")
    assert {t.metric for t in trials} == {"over_refusal"}
    got = rate(trials, "last")
    assert got.value == pytest.approx(1 / 3)
    assert got.unscored == 1


def test_accuracy_reads_the_score_key_of_the_utility_judge() -> None:
    documents = [
        fake_document(
            [[v]], behavior=b, harmful=False, reference="7", judge="exact_match", key="p_correct"
        )
        for b, v in (("right", 1.0), ("wrong", 0.0))
    ]
    trials = trials_of(documents, "exact_match")
    assert {t.metric for t in trials} == {"accuracy"}
    assert rate(trials, "last").value == 0.5
    assert (
        trials_of([fake_document([[1.0]], judge="exact_match", key="p_correct")], "exact_match")
        == []
    )


def test_seeds_and_samples_of_a_behavior_are_one_cluster() -> None:
    documents = [
        fake_document([[1.0, 1.0, 0.0]], behavior="a", seed=0),
        fake_document([[1.0, 0.0, 0.0]], behavior="a", seed=1),
        fake_document([[0.0, 0.0, 0.0]], behavior="b", seed=0),
    ]
    got = rate(trials_of(documents, "refusal_prefix"))
    assert got.n == 2
    assert got.value == pytest.approx((3 / 6 + 0) / 2)
    assert "clustered" in got.method


def test_threshold_can_be_set() -> None:
    documents = [fake_document([[0.6]])]
    assert rate(trials_of(documents, "refusal_prefix", threshold=0.7)).value == 0.0


def test_best_loss_selects_the_step_that_an_attacker_without_a_judge_would_take() -> None:
    document = fake_document([[1.0], [0.0], [1.0]], losses=[2.0, 1.0, None])
    trial = trials_of([document], "refusal_prefix")[0]
    assert selected_steps(trial, "best_loss") == [1]
    assert rate([trial], "best_loss").value == 0.0
    without = trials_of([fake_document([[1.0], [0.0]])], "refusal_prefix")[0]
    assert selected_steps(without, "best_loss") == [1]


def test_steps_without_completions_are_not_misses() -> None:
    trial = trials_of([fake_document([[], [1.0], []])], "refusal_prefix")[0]
    assert selected_steps(trial, "last") == [1]
    assert (trial.completions, trial.unscored) == (1, 0)
    np.testing.assert_array_equal(best_so_far(trial), [np.nan, 1.0, 1.0])


def test_best_so_far_remembers() -> None:
    trial = trials_of([fake_document([[None], [0.0], [1.0], [0.0], [None]])], "refusal_prefix")[0]
    np.testing.assert_array_equal(best_so_far(trial), [np.nan, 0.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("samples", range(1, 8))
def test_best_of_n_equals_the_mean_over_all_subsets(samples: int) -> None:
    for hits in range(samples + 1):
        values = [1] * hits + [0] * (samples - hits)
        for n in range(1, samples + 1):
            subsets = list(itertools.combinations(values, n))
            exhaustive = sum(max(s) for s in subsets) / len(subsets)
            assert best_of_n(hits, samples, n) == pytest.approx(exhaustive, abs=1e-12)


def test_best_of_n_refuses_to_extrapolate() -> None:
    with pytest.raises(ValueError, match="without bias"):
        best_of_n(1, 4, 5)


def test_judge_ids_with_settings_are_read_like_their_judge() -> None:
    view = judge_view("exact_match:0123abcd")
    assert (view.name, view.semantics, view.score_key) == ("exact_match", "utility", "p_correct")
    assert judge_view("made_up_by_someone").score_key == "p_harmful"
    assert judge_view("exact_matching").name == "exact_matching"


def test_items_and_seeds_share_a_setting_and_anything_else_splits_it() -> None:
    base = fake_document([[1.0]])
    same = fake_document([[1.0]], behavior="b1", seed=3)
    other = fake_document([[1.0]], options={"num_steps": 5})
    assert setting_of(base).key == setting_of(same).key
    assert setting_of(base).key != setting_of(other).key
    assert setting_of(base).key != setting_of(fake_document([[1.0]], defense="shield")).key
    groups = group_by_setting([base, same, other])
    assert sorted(len(g) for _, g in groups) == [1, 2]
    labels = distinct_labels([s for s, _ in groups])
    assert sorted(labels.values()) == ["gcg", "gcg (num_steps=5)"]


def test_models_and_held_out_behaviors_of_a_universal_run_are_rated_apart() -> None:
    whole = fake_document([[1.0]], behavior="seen", attack="gcg_universal")
    other = fake_document([[0.0]], behavior="new")["runs"][0]
    runs = [{**r, "model": m} for m in ("m1", "m2") for r in (whole["runs"][0], other)]
    groups = group_by_setting([{**whole, "runs": runs}])
    assert sorted(s.model for s, _ in groups) == [
        f"{m} (fitted on toy)" for m in ("m1", "m1", "m2", "m2")
    ]
    rates = {
        (s.config.get("evaluated_model"), s.config.get("behaviors")): rate(
            trials_of(g, "refusal_prefix")
        ).value
        for s, g in groups
    }
    assert rates == {
        ("m1", None): 1.0,
        ("m1", "held out"): 0.0,
        ("m2", None): 1.0,
        ("m2", "held out"): 0.0,
    }


def test_costs_accumulate_and_search_is_apart_from_sampling() -> None:
    document = fake_document([[0.0], [0.0, 0.0]], queries=7, flops=100, seconds=2.0)
    trial = trials_of([document], "refusal_prefix")[0]
    assert trial.search["queries"].tolist() == [7, 14]
    assert trial.search["seconds"].tolist() == [2.0, 4.0]
    assert trial.sampling["queries"].tolist() == [1, 3]
    assert trial.sampling["flops"].tolist() == [10, 30]
