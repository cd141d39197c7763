"""Seconds of runs that shared batches are on no axis: they say how long a batch took, not a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.budgets import largest_common_budget
from adversariallm.evaluation.compare import At, compare
from adversariallm.evaluation.curves import success_curve
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.trials import Trial, trials_of

JUDGE = "refusal_prefix"


def _trials(**facts: Any) -> list[Trial]:
    return trials_of([fake_document([[0.0], [1.0]], seconds=2.0, **facts)], JUDGE)


def test_shared_seconds_are_unknown_and_exclusive_ones_add_up() -> None:
    assert np.isnan(_trials(attack="bon")[0].search["seconds"]).all()
    assert _trials(attack="bon", timing="exclusive")[0].search["seconds"].tolist() == [2.0, 4.0]


def test_an_attack_that_runs_alone_has_its_own_seconds() -> None:
    assert _trials(attack="gcg")[0].search["seconds"].tolist() == [2.0, 4.0]


def test_curves_over_shared_seconds_are_empty() -> None:
    assert len(success_curve(_trials(attack="bon"), "seconds").x) == 0
    curve = success_curve(_trials(attack="bon", timing="exclusive"), "seconds")
    assert (curve.x.tolist(), curve.value.tolist()) == ([2.0, 4.0], [0.0, 1.0])


def test_comparing_at_shared_seconds_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="timing=exclusive"):
        largest_common_budget([_trials(attack="bon")], "seconds", "total")
    sides = [[fake_document([[1.0]], attack=a)] for a in ("bon", "direct")]
    with pytest.raises(ConfigError, match="seconds are unknown.*timing=exclusive"):
        compare(*sides, JUDGE, rng=Rng.root(0), at=At("seconds", 3.0))
