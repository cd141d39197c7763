"""Thin, one-sided and incomplete results give a table with the reason, and never a bare NaN."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.core.errors import ConfigError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.compare import compare
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.flags import raise_flags
from adversariallm.reporting.details import setting_tables
from adversariallm.reporting.figures import write_figures
from adversariallm.reporting.formats import writer
from adversariallm.reporting.gate import Rule, check_gate
from adversariallm.reporting.html import render_report
from adversariallm.reporting.imports import publish
from adversariallm.reporting.plots import plot_cost, plot_success_by_budget
from adversariallm.reporting.protocols import protocol_table
from adversariallm.reporting.safety import safety_utility
from adversariallm.reporting.summary import summarize
from adversariallm.reporting.tidy import completion_rows, run_rows, step_rows
from adversariallm.runs.store import Store

Documents = list[dict[str, Any]]
JUDGE = "refusal_prefix"


def _many(value: float | None, count: int = 6, **facts: Any) -> Documents:
    return [fake_document([[value], [value]], behavior=f"b{i}", **facts) for i in range(count)]


def _two_judges() -> Documents:
    documents = _many(0.5)
    for document in documents:
        for step in document["runs"][0]["steps"]:
            step["scores"]["pair"] = {"p_harmful": [0.5]}
    return documents


def _missing_steps() -> Documents:
    documents = [
        fake_document([[0.0], [], [1.0]], behavior="gap"),
        fake_document([], behavior="no step"),
        fake_document([[]], behavior="no completion"),
    ]
    del documents[0]["runs"][0]["steps"][1]
    return documents


CASES: dict[str, tuple[Callable[[], Documents], str]] = {
    "no run": (list, "no runs"),
    "not judged": (lambda: _many(1.0, judge=None), "not judged yet"),
    "all unscored": (lambda: _many(None), "none: all 6 unscored"),
    "one behavior": (lambda: _many(1.0, 1), r"100\.0 % \[20\.7, 100\.0\]"),
    "no success": (lambda: _many(0.0), r"0\.0 % \[0\.0, 39\.0\]"),
    "all successes": (lambda: _many(1.0), r"100\.0 % \[61\.0, 100\.0\]"),
    "mixed thresholds": (_two_judges, r"pair: p_harmful >= 1, refusal_prefix: p_harmful >= 0\.5"),
    "missing steps": (_missing_steps, r"100\.0 % \[20\.7, 100\.0\]"),
}

CASES_WITHOUT_CURVE = ("no run", "not judged", "all unscored")


def _has_nan(text: str) -> bool:
    return re.search(r"\b(nan|inf|none %)\b", text, re.IGNORECASE) is not None


@pytest.mark.parametrize("name", CASES)
def test_the_summary_says_why_a_number_is_missing_or_wide(name: str) -> None:
    make, reason = CASES[name]
    table = summarize(make())
    for text in (table.to_markdown(), table.to_latex(), table.to_csv()):
        assert not _has_nan(text), text
    shown = table.to_markdown().replace("\\", "")
    assert re.search(reason, shown), shown


@pytest.mark.parametrize("name", CASES)
def test_the_page_the_tables_and_the_exports_hold_no_bare_nan(name: str, tmp_path: Path) -> None:
    documents = CASES[name][0]()
    page = re.sub(r"<(script|style).*?</\1>", "", render_report(documents), flags=re.DOTALL)
    assert not _has_nan(page)
    for table in (*setting_tables(documents), protocol_table(documents, "harmbench")):
        assert not _has_nan(table.to_markdown()), table.title
    assert not _has_nan(safety_utility(documents).to_markdown())
    assert not any(_has_nan(f"{flag.where} {flag.seen}") for flag in raise_flags(documents))
    for rows in (run_rows, step_rows, completion_rows):
        assert not any(_has_nan(str(v)) for row in rows(documents) for v in row.values())
    if documents:
        for path in writer("csv")(documents, tmp_path, form="csv"):
            assert not _has_nan(path.read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_figures_of_thin_results_are_drawn_or_left_out(name: str, tmp_path: Path) -> None:
    documents = CASES[name][0]()
    for path in write_figures(documents, tmp_path, axes=["steps"]):
        assert path.suffix != ".svg" or not _has_nan(path.read_text("utf-8"))
    rows = list(completion_rows(documents))
    judge = JUDGE if name == "mixed thresholds" else None
    drawn = plot_success_by_budget(rows, judge=judge)
    assert bool(drawn.lines or drawn.containers) == (name not in CASES_WITHOUT_CURVE)
    plot_cost(list(run_rows(documents)))


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        (
            lambda: _many(1.0, judge=None, attack="direct"),
            "direct: refusal_prefix scored none of its 12",
        ),
        (lambda: _many(None, attack="direct"), "direct: refusal_prefix scored none of its 12"),
        (lambda: [fake_document([[1.0]], behavior="other", attack="direct")], "in common"),
        (list, "found no runs"),
    ],
    ids=["not judged", "all unscored", "no behavior in common", "no run"],
)
def test_a_comparison_that_cannot_be_made_says_why(
    documents: Callable[[], Documents], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        compare(_many(1.0), documents(), JUDGE, rng=Rng.root(0))


@pytest.mark.parametrize(("a", "b"), [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("count", [1, 6])
def test_one_behavior_and_one_sided_results_compare_with_numbers(
    a: float, b: float, count: int
) -> None:
    found = compare(_many(a, count), _many(b, count, attack="direct"), JUDGE, rng=Rng.root(0))
    assert not _has_nan(found.sentence())
    assert found.interval.low <= found.difference <= found.interval.high
    assert 0 < found.p_value <= 1
    assert found.needed is None or found.needed > 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no run", "no stored run measures attack success here"),
        ("not judged", "no stored run measures attack success here"),
        ("all unscored", "nothing was scored"),
    ],
)
def test_a_gate_fails_where_nothing_was_measured(name: str, reason: str) -> None:
    rule = Rule(name="g", measure="attack_success", max=1.0)
    (verdict,) = check_gate(CASES[name][0](), [rule])
    assert not verdict.passed and reason in verdict.detail


@pytest.mark.parametrize("name", [n for n in CASES if n != "no run"])
def test_the_report_command_works_on_every_thin_store(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(Store(tmp_path / "out", durable=False), CASES[name][0]())
    assert main(["report", str(tmp_path / "out")]) == 0
    assert not _has_nan(capsys.readouterr().out)


def test_an_empty_store_is_refused_with_what_was_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(tmp_path / "out", durable=False)
    (tmp_path / "out").mkdir(exist_ok=True)
    assert main(["report", str(tmp_path / "out"), "--where", "attack=gcg"]) == 1
    assert "has no published run with attack=gcg" in capsys.readouterr().err
