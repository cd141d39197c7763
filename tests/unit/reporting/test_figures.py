"""Figures draw what the data say, on the axis they are given, and equal data give equal files."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from adversariallm.evaluation.curves import success_curve
from adversariallm.evaluation.fakes import fake_document
from adversariallm.evaluation.sensitivity import Agreement
from adversariallm.evaluation.success import rate
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting import figures

JUDGE = "refusal_prefix"
DOCUMENTS = [fake_document([[0.0, 0.2], [float(i < 2), 1.0]], behavior=f"b{i}") for i in range(4)]
TRIALS = trials_of(DOCUMENTS, JUDGE)


def test_curves_are_drawn_in_percent_with_a_band_each() -> None:
    ax = Figure().subplots()
    assert figures.success_by_budget({"a": success_curve(TRIALS)}, ax) is ax
    (line,) = ax.lines
    assert line.get_ydata().tolist() == [0.0, 100.0]
    assert len(ax.collections) == 1
    costs = figures.success_by_budget({"a": success_curve(TRIALS, "flops")}, Figure().subplots())
    assert costs.get_xscale() == "log"


def test_success_by_samples_and_harmfulness_use_every_sample() -> None:
    ax = figures.success_by_samples(TRIALS, Figure().subplots())
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([75.0, 100.0])
    ax = figures.harmfulness_over_samples(TRIALS, Figure().subplots())
    assert len(ax.lines[0].get_xdata()) == 9


def test_empty_data_draw_empty_axes() -> None:
    for ax in (
        figures.success_by_budget({}, Figure().subplots()),
        figures.success_by_samples([], Figure().subplots()),
        figures.harmfulness_over_samples([], Figure().subplots()),
        figures.rates([], Figure().subplots()),
        figures.safety_against_utility({}, Figure().subplots()),
    ):
        assert not ax.lines


def test_points_and_matrices() -> None:
    found = rate(TRIALS)
    ax = figures.safety_against_utility({"m": (found, found)}, Figure().subplots())
    assert ax.lines[0].get_xdata().tolist() == [75.0]
    assert ax.lines[0].get_ydata().tolist() == [25.0]
    pair = Agreement("a", "b", 4, 0.75, 0.5, 1, 0, 0)
    ax = figures.judge_agreement([pair], Figure().subplots())
    assert sorted(t.get_text() for t in ax.texts) == ["100", "100", "75", "75"]


def test_the_usual_set_is_written_twice_alike(tmp_path: Path) -> None:
    first, second = (figures.write_figures(DOCUMENTS, tmp_path / n, axes=["steps"]) for n in "ab")
    assert [p.name for p in first] == [
        "success-by-steps-starter-harmful-refusal-prefix.pdf",
        "success-by-steps-starter-harmful-refusal-prefix.svg",
        "rates.pdf",
        "rates.svg",
    ]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
