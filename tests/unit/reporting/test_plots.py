"""Figures from frames show what the documents say, also after rows were filtered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from adversariallm.core.errors import DataError
from adversariallm.evaluation.curves import Axis, success_curve
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.metrics import success_at
from adversariallm.evaluation.success import rate
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting import plots
from adversariallm.reporting.frames import trials_from
from adversariallm.reporting.tidy import completion_rows, run_rows

JUDGE = "refusal_prefix"


def _documents(attack: str = "gcg", **facts: Any) -> list[dict[str, Any]]:
    return [
        fake_document(
            [[0.0, None], [float(i < 2), 1.0]], behavior=f"b{i}", seed=s, attack=attack,
            losses=[2.0, 1.0], flops=1000 * (i + 1), **facts,
        )
        for i in range(4) for s in (0, 1)
    ]  # fmt: skip


def _rows(*documents: dict[str, Any]) -> list[dict[str, Any]]:
    return list(completion_rows(documents))


@pytest.mark.parametrize("axis", ["steps", "queries", "flops", "tokens", "seconds"])
def test_trials_from_rows_give_the_same_curves_as_the_documents(axis: Axis) -> None:
    documents = _documents(timing="exclusive")
    ours = success_curve(trials_of(documents, JUDGE), axis)
    again = success_curve(trials_from(_rows(*documents)), axis)
    for name in ("x", "value", "low", "high", "n"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(again, name))


def test_trials_from_rows_keep_scores_losses_and_what_is_unscored() -> None:
    (ours,), (again,) = trials_of(_documents()[:1], JUDGE), trials_from(_rows(*_documents()[:1]))
    np.testing.assert_array_equal(ours.hits, again.hits)
    np.testing.assert_array_equal(ours.loss, again.loss)
    assert (ours.unscored, ours.metric, ours.category) == (1, again.metric, again.category)
    assert rate([ours]) == rate([again])


def test_success_by_budget_draws_one_curve_for_each_attack() -> None:
    ax = Figure().subplots()
    rows = _rows(*_documents(), *_documents("bon"))
    assert plots.plot_success_by_budget(rows, "flops", ax=ax) is ax
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["gcg on toy", "bon on toy"]
    assert ax.get_xscale() == "log"
    shared = plots.plot_success_by_budget(_rows(*_documents("bon")), "seconds")
    assert not shared.lines


def test_a_filtered_frame_is_drawn_as_filtered() -> None:
    rows = [r for r in _rows(*_documents()) if r["behavior"] in ("b0", "b1")]
    ax = plots.plot_success_by_budget(rows)
    assert ax.lines[0].get_ydata().tolist() == [0.0, 100.0]
    assert plots.plot_rates(rows).lines[-1].get_xdata().tolist() == [100.0]


def test_success_by_samples_and_harmfulness_read_every_sample() -> None:
    trials = trials_of(_documents(), JUDGE)
    drawn = plots.plot_success_by_samples(_rows(*_documents())).lines[0].get_ydata()
    assert drawn[0] == pytest.approx(100 * (success_at(trials, 1).value or 0))
    ax = plots.plot_harmfulness(_rows(*_documents()))
    assert len(ax.lines[0].get_xdata()) == 1 + 16


def test_cost_is_divided_into_search_and_sampling() -> None:
    runs = list(run_rows([*_documents(), *_documents("bon")]))
    ax = plots.plot_cost(runs, "queries")
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [20.0, 20.0, 4.0, 4.0]  # ten search queries a step, two answers a step
    assert [t.get_text() for t in ax.get_yticklabels()] == ["gcg", "bon"]


def test_the_best_split_rises_with_the_budget() -> None:
    ax = plots.plot_best_split(_rows(*_documents()), [500.0, 20000.0])
    drawn = ax.lines[0].get_ydata().tolist()
    assert drawn[-1] == 100.0 and drawn[0] <= drawn[-1]


def test_what_cannot_be_drawn_is_refused_with_the_reason() -> None:
    rows = _rows(*_documents())
    with pytest.raises(DataError, match="no column 'judge'"):
        plots.plot_rates([{k: v for k, v in r.items() if k != "judge"} for r in rows])
    second = [r | {"judge": "pair"} for r in rows]
    with pytest.raises(DataError, match="several judges scored these rows: pair, refusal_prefix"):
        plots.plot_rates([*rows, *second])
    with pytest.raises(DataError, match="'nobody' scored no harmful request"):
        plots.plot_rates(rows, judge="nobody")
    other = [r | {"setting": "another"} for r in rows]
    with pytest.raises(DataError, match="stands for 2 different settings"):
        plots.plot_rates([*rows, *other])


def test_no_rows_and_no_judge_give_an_empty_axis() -> None:
    unjudged = _rows(fake_document([[1.0]], judge=None))
    for ax in (
        plots.plot_success_by_budget([]),
        plots.plot_rates(unjudged),
        plots.plot_harmfulness(unjudged),
        plots.plot_cost([]),
    ):
        assert not ax.lines
