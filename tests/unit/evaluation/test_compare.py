"""Paired comparison against scipy's tests, by coverage, and by what it refuses."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.compare import (
    At,
    adjusted,
    compare,
    holm,
    paired_interval,
    paired_test,
    pairs_needed,
)
from adversariallm.evaluation.fakes import fake_document

JUDGE = "refusal_prefix"
RNG = Rng.root(0).child("compare")


def _side(values: list[float], **facts: Any) -> list[dict[str, Any]]:
    return [fake_document([[v]], behavior=f"b{i}", **facts) for i, v in enumerate(values)]


def test_mcnemar_equals_the_binomial_test_on_discordant_pairs() -> None:
    d = np.array([1.0] * 7 + [-1.0] * 2 + [0.0] * 11)
    p, test = paired_test(d, RNG)
    assert test == "exact McNemar test"
    assert p == pytest.approx(stats.binomtest(7, 9).pvalue)


def test_exact_permutation_equals_enumeration_and_scipy() -> None:
    d = Rng.root(2).child("d").numpy().normal(0.2, 0.4, size=8)
    p, test = paired_test(d, RNG)
    flips = [
        abs(sum(s * v for s, v in zip(f, d, strict=True)))
        for f in itertools.product((1, -1), repeat=8)
    ]
    assert p == pytest.approx(np.mean([v >= abs(d.sum()) - 1e-9 for v in flips]))
    oracle = stats.permutation_test(
        (d,),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert test == "exact permutation test"
    assert p == pytest.approx(oracle.pvalue)


def test_large_permutation_test_is_close_to_the_t_test_and_repeats_itself() -> None:
    d = Rng.root(4).child("d").numpy().normal(0.1, 0.5, size=60)
    p, _ = paired_test(d, RNG)
    assert p == pytest.approx(float(stats.ttest_1samp(d, 0).pvalue), abs=0.02)
    assert paired_test(d, RNG)[0] == p


def test_no_difference_at_all_has_p_one() -> None:
    assert paired_test(np.zeros(5), RNG) == (1.0, "no pair differs")


@pytest.mark.parametrize("shift", [0.0, 0.15])
def test_paired_interval_covers_for_correlated_hits(shift: float) -> None:
    rng = Rng.root(1).child("pairs", int(100 * shift)).numpy()
    n, repeats, covered = 30, 800, 0
    for _ in range(repeats):
        common = rng.random(n)
        x = (common < 0.4).astype(float)
        y = np.where(rng.random(n) < 0.7, common, rng.random(n)) < 0.4 + shift
        interval = paired_interval(x, y.astype(float))
        covered += interval.low <= shift <= interval.high
    assert covered / repeats > 0.935 - 0.02


def test_paired_interval_never_claims_certainty() -> None:
    zeros, ones = np.zeros(10), np.ones(10)
    assert paired_interval(zeros, zeros).high > 0.1
    assert paired_interval(zeros, ones).low < 1.0
    half = paired_interval(np.full(10, 0.5), np.full(10, 0.5))
    assert half.low < 0 < half.high


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_pairs_needed_inverts_the_power_of_the_paired_t_test() -> None:
    d = np.array([1.0] * 6 + [0.0] * 12 + [-1.0] * 2)
    n = pairs_needed(d)
    assert n is not None
    power = stats.norm.sf(1.96 - d.mean() / (d.std(ddof=1) / np.sqrt(n)))
    assert power == pytest.approx(0.8, abs=0.02)
    assert pairs_needed(np.zeros(5)) is None


def test_a_comparison_pairs_behaviors_and_says_what_it_found() -> None:
    a = _side([0.0] * 12 + [1.0] * 3, attack="direct")
    b = _side([1.0] * 12 + [1.0] * 2, attack="gcg")
    got = compare(a, b, JUDGE, rng=RNG)
    assert (got.pairs, got.only_a, got.only_b) == (14, 1, 0)
    assert (got.name_a, got.name_b) == ("direct", "gcg")
    assert got.difference == pytest.approx(12 / 14)
    assert got.sentence().startswith("gcg has a higher attack success than direct")
    same = compare(a, _side([0.0] * 15, attack="bon"), JUDGE, rng=RNG)
    assert same.sentence().startswith("No difference between direct and bon is shown")
    assert same.needed is not None and str(same.needed) in same.sentence()


def test_unscored_behaviors_are_left_out_of_both_sides_and_counted() -> None:
    a = _side([0.0, 1.0], attack="direct")
    b = [
        fake_document([[None]], behavior="b0", attack="gcg"),
        fake_document([[1.0]], behavior="b1", attack="gcg"),
    ]
    got = compare(a, b, JUDGE, rng=RNG)
    assert (got.pairs, got.only_a, got.only_b) == (1, 1, 1)


def test_seeds_are_paired_before_behaviors_are_averaged() -> None:
    a = [
        fake_document([[v]], behavior="b", seed=s, attack="x")
        for s, v in ((0, 0.0), (1, 1.0), (2, 1.0))
    ]
    b = [fake_document([[v]], behavior="b", seed=s, attack="y") for s, v in ((0, 1.0), (1, 1.0))]
    got = compare(a, b, JUDGE, rng=RNG)
    assert (got.rate_a, got.rate_b) == (0.5, 1.0)


def test_equal_cost_reads_both_curves_at_one_budget() -> None:
    a = [fake_document([[0.0], [0.0], [1.0]], behavior="b", attack="slow", flops=1000)]
    b = [fake_document([[0.0], [1.0]], behavior="b", attack="fast", flops=1000)]
    got = compare(a, b, JUDGE, rng=RNG, at=At("flops", 2300))
    assert (got.rate_a, got.rate_b) == (0.0, 1.0)
    later = compare(a, b, JUDGE, rng=RNG, at=At("flops", 3300))
    assert (later.rate_a, later.rate_b) == (1.0, 1.0)


def test_unlike_things_are_refused_by_name_and_allowed_by_name() -> None:
    a = _side([0.0], attack="direct", model="m1")
    b = _side([1.0], attack="gcg", model="m2")
    with pytest.raises(ConfigError, match=r"attack\.name: 'direct' against 'gcg'.*models\.0"):
        compare(a, b, JUDGE, rng=RNG)
    got = compare(a, b, JUDGE, rng=RNG, allow=["models"])
    assert got.allowed and got.name_b == "gcg"
    other = [dict(d, config=dict(d["config"], generation={"max_new_tokens": 64})) for d in b]
    with pytest.raises(ConfigError, match="generation.*--allow generation"):
        compare(_side([0.0], attack="direct", model="m2"), other, JUDGE, rng=RNG)


def test_nothing_to_pair_or_to_read_is_an_error_with_the_reason() -> None:
    a = _side([0.0], attack="direct")
    with pytest.raises(ConfigError, match="no behavior in common"):
        compare(a, [fake_document([[1.0]], behavior="other")], JUDGE, rng=RNG)
    with pytest.raises(ConfigError, match=r"no seed in common \(A has 0, B 3\)"):
        compare(a, _side([1.0], seed=3), JUDGE, rng=RNG)
    late = [fake_document([[None], [1.0]], behavior="b0", queries=10)]
    with pytest.raises(ConfigError, match=r"within 12 queries.*Give a larger budget"):
        compare(a, late, JUDGE, rng=RNG, at=At("queries", 12))
    with pytest.raises(UnknownNameError, match="Did you mean 'refusal_prefix'"):
        compare(a, _side([1.0]), "refusal_prefx", rng=RNG)
    with pytest.raises(ConfigError, match="measures nothing"):
        compare(a, _side([1.0]), "exact_match", rng=RNG)
    with pytest.raises(ConfigError, match="one setting; found no runs: select"):
        compare([], a, JUDGE, rng=RNG)
    mixed = [*a, *_side([0.0], attack="gcg")]
    with pytest.raises(ConfigError, match=r"one setting.*they differ in attack\.name"):
        compare(mixed, a, JUDGE, rng=RNG)


def test_several_comparisons_are_corrected_together() -> None:
    a = _side([0.0] * 8, attack="direct")
    others = [compare(a, _side([1.0] * 8, attack=n), JUDGE, rng=RNG) for n in ("x", "y", "z")]
    corrected = adjusted(others)
    assert [c.p_adjusted for c in corrected] == pytest.approx([3 * c.p_value for c in others])
