"""Curves against the definition, evaluated budget by budget."""

from __future__ import annotations

import numpy as np

from adversariallm.evaluation.curves import success_curve
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.trials import trials_of


def test_success_by_step_carries_early_ends_forward() -> None:
    documents = [
        fake_document([[1.0]], behavior="direct hit"),
        fake_document([[0.0], [0.0], [1.0], [0.0]], behavior="won at 2"),
        fake_document([[0.0], [0.0]], behavior="stopped at 1"),
    ]
    curve = success_curve(trials_of(documents, "refusal_prefix"), "steps")
    assert curve.x.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(curve.value, [1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert curve.n.tolist() == [3, 3, 3, 3]
    assert (curve.low <= curve.value).all() and (curve.value <= curve.high).all()


def test_success_by_cost_is_zero_before_the_first_step_is_paid_for() -> None:
    documents = [
        fake_document([[1.0]], behavior="cheap", queries=4),
        fake_document([[1.0]], behavior="dear", queries=9),
    ]
    curve = success_curve(trials_of(documents, "refusal_prefix"), "queries", spend="search")
    assert curve.x.tolist() == [4, 9]
    np.testing.assert_allclose(curve.value, [0.5, 1.0])
    total = success_curve(trials_of(documents, "refusal_prefix"), "queries")
    assert total.x.tolist() == [5, 10]


def test_unscored_steps_leave_the_denominator_until_something_is_known() -> None:
    documents = [
        fake_document([[None], [1.0]], behavior="a"),
        fake_document([[0.0], [0.0]], behavior="b"),
    ]
    curve = success_curve(trials_of(documents, "refusal_prefix"), "steps")
    assert curve.n.tolist() == [1, 2]
    np.testing.assert_allclose(curve.value, [0.0, 0.5])


def test_a_long_curve_is_thinned_but_keeps_its_ends() -> None:
    document = fake_document([[0.0]] * 500)
    curve = success_curve(trials_of([document], "refusal_prefix"), max_points=20)
    assert len(curve.x) == 20
    assert (curve.x[0], curve.x[-1]) == (0, 499)


def test_no_trials_give_an_empty_curve() -> None:
    assert len(success_curve([]).x) == 0
