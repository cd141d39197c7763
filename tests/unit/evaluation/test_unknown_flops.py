"""FLOPs that nobody knows are NaN in curves, a dash in tables and a reason in comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.budgets import best_split, largest_common_budget
from adversariallm.evaluation.curves import success_curve
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.trials import Trial, trials_of
from adversariallm.reporting.details import setting_tables
from adversariallm.reporting.figures import write_figures
from adversariallm.reporting.summary import cost_of, summarize
from adversariallm.reporting.tidy import run_rows

JUDGE = "refusal_prefix"


def behind_an_endpoint(**facts: Any) -> dict[str, Any]:
    """A run whose sampled answers came from an endpoint; its search cost nothing unknown."""
    document = dict(fake_document([[0.0], [1.0]], **facts))
    for ledgers in (document["ledgers"], *(s["ledgers"] for s in document["runs"][0]["steps"])):
        ledgers["sampling"]["model"]["flops"] = None
    return document


def trials(*documents: dict[str, Any]) -> list[Trial]:
    return trials_of(documents, JUDGE)


def test_curves_leave_out_what_is_unknown_and_keep_the_other_axes() -> None:
    found = trials(behind_an_endpoint())
    assert np.isnan(found[0].sampling["flops"]).all()
    assert not np.isnan(found[0].search["flops"]).any()
    assert len(success_curve(found, "flops").x) == 0
    assert success_curve(found, "flops", spend="search").value[-1] == 1.0
    assert success_curve(found, "queries").value[-1] == 1.0
    mixed = trials(behind_an_endpoint(behavior="a"), fake_document([[0.0], [0.0]], behavior="b"))
    curve = success_curve(mixed, "flops")
    assert curve.n.tolist() == [1.0] * len(curve.x) and curve.value[-1] == 0.0


def test_comparing_at_unknown_flops_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="flops are unknown.*queries"):
        largest_common_budget([trials(behind_an_endpoint())], "flops", "total")
    (split,) = best_split(trials(behind_an_endpoint()), [1e9], Rng.root(0))
    assert split.step is None


def test_tables_show_a_dash_and_say_why() -> None:
    document = behind_an_endpoint()
    cost = cost_of([document])
    assert (cost["flops"], cost["flops_sampling"]) == (None, None)
    assert isinstance(cost["flops_search"], int) and cost["queries"] > 0
    table = summarize([document])
    shown = {c.key: c.show(table.rows[0]) for c in table.columns}
    assert shown["flops"] == "-"
    assert any(note.startswith("FLOPs: a dash") for note in table.notes)
    assert not any("FLOPs: a dash" in n for n in summarize([fake_document([[1.0]])]).notes)
    budgets = next(t for t in setting_tables([document]) if "Budget" in t.title)
    assert [r["budget"] for r in budgets.rows] == ["steps", "queries"]
    (row,) = run_rows([document])
    assert row["sampling_flops"] is None and row["sampling_queries"] > 0


def test_no_figure_is_drawn_over_what_is_unknown(tmp_path: Path) -> None:
    drawn = {path.name for path in write_figures([behind_an_endpoint()], tmp_path)}
    assert any("by-queries" in name for name in drawn)
    assert not any("by-flops" in name for name in drawn)
