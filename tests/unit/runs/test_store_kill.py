"""The store under kill -9 and frozen processes; full size in tests/slow/test_store_kill.py."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from adversariallm.core.errors import StoreError
from adversariallm.runs.selftest import selftest
from adversariallm.runs.stress import Settings, stress


def test_killed_and_frozen_workers_lose_nothing_and_publish_once(tmp_path: Path) -> None:
    report = stress(Settings(roots=(str(tmp_path),), kills=12, stops=3, num_runs=48))
    assert report.problems == [], report
    assert sum(report.kills.values()) >= 6
    assert report.stops >= 1
    assert report.acknowledged_steps >= 48 * 20 - sum(report.kills.values())


def test_many_generations_of_few_contended_runs(tmp_path: Path) -> None:
    settings = Settings(
        roots=(str(tmp_path),), kills=15, stops=6, num_runs=2, num_steps=300, ttl_s=0.4
    )
    report = stress(settings)
    assert report.problems == [], report
    assert report.highest_generation >= 4


def test_the_stress_finds_a_store_that_breaks_its_promises(tmp_path: Path) -> None:
    report = stress(Settings(roots=(str(tmp_path / "x"),), kills=0, stops=0, num_runs=2, limit_s=0))
    assert any("not done" in p for p in report.problems)
    assert any("not published" in p for p in report.problems)


def test_the_selftest_passes_here_and_leaves_nothing_behind(tmp_path: Path) -> None:
    checks = selftest(tmp_path, kills=4)
    assert [c.name for c in checks if not c.passed] == []
    assert list(tmp_path.iterdir()) == []


def test_the_selftest_names_a_missing_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links")

    monkeypatch.setattr("os.link", no_links)
    failed = [c for c in selftest(tmp_path, kills=0) if not c.passed]
    assert failed
    assert "hard links" in failed[0].detail


def test_the_selftest_of_a_place_that_cannot_be_written_is_a_clear_error() -> None:
    with pytest.raises(StoreError, match="/proc"):
        selftest(Path("/proc/nowhere"), kills=0)
