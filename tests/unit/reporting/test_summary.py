"""The summary table: what is joined, what is counted, and how each form writes it."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from rich.console import Console

from adversariallm.evaluation.fakes import fake_document
from adversariallm.reporting import summarize, write_csv
from adversariallm.reporting.tables import Column, Table
from adversariallm.reporting.text import quantity, rate_text, seconds_text, visible


def _terminal(table: Table) -> str:
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(table.to_rich())
    return console.export_text()


def test_one_row_per_setting_judge_and_measure_with_cost() -> None:
    documents = [
        *(fake_document([[float(i < 3)]], behavior=f"b{i}", queries=5) for i in range(8)),
        fake_document([[1.0]], behavior="b0", attack="direct"),
    ]
    table = summarize(documents)
    assert [(r["attack"], r["measure"]) for r in table.rows] == [
        ("direct", "attack success"),
        ("gcg", "attack success"),
    ]
    gcg = table.rows[1]
    assert gcg["rate"].value == 3 / 8
    assert (gcg["behaviors"], gcg["queries_search"], gcg["queries_sampling"]) == (8, 40, 8)
    assert gcg["queries"] == 48
    assert "37.5 % [13.7, 69.4]" in _terminal(table)


def _timed(timing: str, **facts: Any) -> dict[str, Any]:
    document = fake_document([[1.0], [1.0]], seconds=3.0, **facts)
    document["resolved"]["amounts"] = {"timing": timing}
    document["total_time"] = 10.0
    return document


def test_seconds_are_shown_only_where_no_other_run_stretched_them() -> None:
    pair = [_timed("shared", attack="direct"), _timed("exclusive", attack="direct", behavior="b1")]
    table = summarize(pair)
    assert table.rows[0]["seconds"] is None
    assert any("timing=exclusive in a new out=" in note for note in table.notes)
    alone = summarize([_timed("exclusive", attack="direct")])
    assert alone.rows[0]["seconds"] == 10.0
    assert not any("seconds" in note for note in alone.notes)


def test_an_attack_that_runs_alone_shows_its_search_seconds() -> None:
    table = summarize([_timed("shared"), _timed("exclusive", behavior="b1")])
    assert table.rows[0]["seconds"] == 12.0
    assert any("search only" in note for note in table.notes)
    assert summarize([_timed("shared", attack="from elsewhere")]).rows[0]["seconds"] is None


def test_unjudged_runs_are_shown_with_the_reason() -> None:
    table = summarize([fake_document([[1.0, 1.0]], judge=None)])
    assert table.rows[0]["measure"] == "not judged yet"
    assert table.rows[0]["unscored"] == 2
    assert "not judged yet" in _terminal(table)


def test_a_judge_that_cannot_speak_about_the_set_is_named() -> None:
    table = summarize([fake_document([[1.0]], judge="exact_match", key="p_correct")])
    assert table.rows[0]["measure"] == "nothing that exact_match can measure"


def test_all_unscored_says_so_and_no_runs_say_so() -> None:
    text = _terminal(summarize([fake_document([[None]])]))
    assert "none: all 1 unscored" in text
    assert "nan" not in text.lower()
    assert "no runs" in _terminal(summarize([]))


def test_unscored_completions_are_noted_with_their_bounds() -> None:
    table = summarize([fake_document([[1.0]], behavior="a"), fake_document([[None]], behavior="b")])
    assert any("between 50.0 % and 100.0 %" in note for note in table.notes)


def test_settings_with_equal_names_are_told_apart() -> None:
    table = summarize([fake_document([[1.0]]), fake_document([[0.0]], options={"num_steps": 9})])
    assert sorted(r["attack"] for r in table.rows) == ["gcg", "gcg (num_steps=9)"]


def test_csv_has_full_numbers_and_the_counts(tmp_path: Any) -> None:
    table = summarize([fake_document([[1.0]], behavior=f"b{i}") for i in range(3)])
    path = tmp_path / "summary.csv"
    write_csv(table, path)
    row = next(csv.DictReader(path.read_text("utf-8").splitlines()))
    assert (row["rate"], row["rate_n"], row["rate_unscored"]) == ("1.0", "3", "0")
    assert float(row["rate_low"]) == pytest.approx(0.43850, abs=1e-4)


def test_spreadsheets_find_no_formula_and_terminals_no_escape() -> None:
    table = Table(
        "t", (Column("a", "a"),), ({"a": "=HYPERLINK(1)"}, {"a": "\x1b[31mred [bold]x[/bold]"})
    )
    assert "\n'=HYPERLINK(1)\n" in table.to_csv()
    shown = _terminal(table)
    assert "\x1b" not in shown and "\\x1b[31mred [bold]x[/bold]" in shown


def test_markdown_and_latex_escape_their_own_marks() -> None:
    table = Table("t", (Column("a", "a_b"), Column("n", "n", "count")), ({"a": "x|y_z%&", "n": 3},))
    assert r"x\|y\_z%&" in table.to_markdown()
    assert r"x|y\_z\%\& & 3 \\" in table.to_latex()


def test_hidden_characters_become_escapes_and_words_stay() -> None:
    assert (
        visible("a\x1b[0m\u202eb\u200b\ud800\U000e0041")
        == "a\\x1b[0m\\u202eb\\u200b\\ud800\\U000e0041"
    )
    kept = "Gr\u00fc\u00dfe, \u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \U0001f600\n\tx"
    assert visible(kept) == kept


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (7.25, "7.25"),
        (512, "512"),
        (25_300, "25.3k"),
        (4.2e6, "4.2M"),
        (1.34e12, "1.3e+12"),
        (None, "-"),
        (float("nan"), "-"),
    ],
)
def test_quantities_are_short(value: float | None, text: str) -> None:
    assert quantity(value) == text


def test_seconds_have_units() -> None:
    assert [seconds_text(v) for v in (0.42, 12.4, 200.0, 7500.0)] == [
        "0.42 s",
        "12 s",
        "3 min 20 s",
        "2 h 05 min",
    ]


def test_rate_text_never_shows_a_number_without_its_interval() -> None:
    table = summarize([fake_document([[0.0]], behavior=f"b{i}") for i in range(4)])
    assert rate_text(table.rows[0]["rate"]) == "0.0 % [0.0, 49.0]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (7.5, "7.5"), (512, "512"), (1100.0000001, "1100"), (4919.3, "4919"),
        (31000, "31.0k"), (4.2e6, "4.2M"), (1.3e12, "1.3e+12"), (None, "-"), (float("nan"), "-"),
    ],
)  # fmt: skip
def test_quantities_are_short_and_never_of_two_kinds(value: float | None, shown: str) -> None:
    assert quantity(value) == shown
