from __future__ import annotations

import io
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from adversariallm.cli import _console
from adversariallm.cli._console import Reporter, duration, flat, say_skipped
from adversariallm.runs.execute import Event
from adversariallm.runs.worker import Outcome


def task(label: str = "a", **options: Any) -> Any:
    attack = SimpleNamespace(name="toy", options=options or {"num_steps": 9})
    return SimpleNamespace(spec=SimpleNamespace(attack=attack, label=label))


def ended(label: str = "a", ending: Any = "done", detail: str = "") -> Outcome:
    return Outcome("0" * 32, label, ending, detail)


PLAN: Any = SimpleNamespace(notes=["-m is not needed"], skipped=(), todo=(1, 2))
STORE: Any = SimpleNamespace(root="out")


def test_plain_lines_have_an_estimate_and_notes_go_aside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Reporter() as reporter:
        reporter.planned(PLAN, STORE)
        reporter.working(len(PLAN.todo))
        reporter.outcome(ended("a"))
        reporter.outcome(ended("b", "failed", "no memory"))
    shown = capsys.readouterr()
    assert "2 runs to do, results in out" in shown.out
    assert "[1/2, about 0 s left] done: a" in shown.out
    assert "failed: b (no memory)" in shown.err
    assert "note: -m is not needed" in shown.err


def test_quiet_keeps_problems(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter(quiet=True) as reporter:
        reporter.planned(PLAN, STORE)
        reporter.working(len(PLAN.todo))
        reporter.event(task(), Event("step", 0, {"loss": 1.0}))
        reporter.outcome(ended("a"))
        reporter.judging("rule", 1)
        reporter.judged("rule", "1", RuntimeError("no key"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "rule failed on 1: no key\n"


def test_a_long_run_says_now_and_then_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "SILENCE_S", -1.0)
    with Reporter() as reporter:
        reporter.planned(PLAN, STORE)
        reporter.working(len(PLAN.todo))
        reporter.event(task(), Event("step", 4, {"loss": 1.25}))
    assert "[0/2, about 0 s left] toy step 4 loss 1.25" in capsys.readouterr().out


def test_silence_is_broken_before_the_first_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "SILENCE_S", 0.02)
    with Reporter() as reporter:
        reporter.planned(PLAN, STORE)
        reporter.working(len(PLAN.todo))
        time.sleep(0.4)
    assert "[0/2] loading models, preparing the first step (no news for" in capsys.readouterr().out
    with Reporter(quiet=True) as reporter:
        reporter.working(1)
        time.sleep(0.2)
    assert capsys.readouterr().out == ""


def test_what_was_done_before_does_not_shorten_the_estimate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(_console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_console, "SILENCE_S", 9.0)
    with Reporter() as reporter:
        reporter.working(1)
        reporter.event(task(), Event("resumed", 4))
        now[0] = 90.0
        reporter.event(task(), Event("step", 5, {"loss": 1.0}))
    assert "[0/1, about 8 min left] toy step 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"num_tokens": 9, "k1": 3},
        {"num_suffixes": 9, "num_tokens": 20},
        {"gcg": {"num_steps": 9}, "num_train": 4},
        {"num_streams": 3, "num_iterations": 3},
    ],
)
def test_attacks_name_their_length_in_their_own_words(options: dict[str, Any]) -> None:
    assert Reporter()._share(task(**options), Event("step", 4)) == pytest.approx(0.45)


def test_the_length_of_an_unknown_attack_is_learned_from_runs_that_ended() -> None:
    reporter = Reporter()
    assert reporter._share(task(words=2), Event("step", 4)) == 0.0
    reporter._share(task(words=2), Event("done", 9))
    assert reporter._share(task(words=2), Event("step", 4)) == pytest.approx(0.45)
    assert reporter._share(task(words=3), Event("step", 4)) == 0.0


def test_the_bar_counts_steps_of_unfinished_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(_console, "console", lambda: screen)
    reporter = Reporter()
    reporter._live = True
    with reporter:
        reporter.planned(PLAN, STORE)
        reporter.working(len(PLAN.todo))
        bar = reporter._bar
        assert bar is not None
        reporter.event(task("a"), Event("step", 4))
        assert bar.tasks[0].completed == pytest.approx(0.45)
        reporter.event(task("a"), Event("done", 9))
        assert bar.tasks[0].completed == 1.0
        reporter.outcome(ended("a"))
        assert bar.tasks[0].completed == 1.0
        reporter.event(task("b"), Event("step", 0, {"loss": 2.0}))
        assert "loss 2" in bar.tasks[0].fields["detail"]
        reporter.outcome(ended("b", "failed", "\x1b[31mred"))
        assert bar.tasks[0].completed == 2.0
    assert "\\x1b[31mred" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_reasons_for_skipping_are_told_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"run {i}", f"already done in out/runs/{i}") for i in range(5)]
    say_skipped([*rows, ("x", "needs gradients")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [f"skipped: already done in out/runs/{i} [run {i}]" for i in range(3)]
    assert lines[3] == "skipped: 2 more like this"
    assert lines[4] == "skipped: needs gradients [x]"


def test_small_helpers() -> None:
    assert [duration(s) for s in (3, 89, 300, 7200)] == ["3 s", "89 s", "5 min", "2.0 h"]
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
