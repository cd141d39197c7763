"""The store under at least 200 kill -9 and 50 SIGSTOP over claim, step, publish and score."""

from __future__ import annotations

from pathlib import Path

import pytest

from adversariallm.runs.stress import Settings, stress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_hundred_kills_and_fifty_freezes(tmp_path: Path) -> None:
    settings = Settings(
        roots=(str(tmp_path),), kills=200, stops=50, num_runs=400, num_steps=40, limit_s=800
    )
    report = stress(settings)
    assert report.problems == [], report
    assert sum(report.kills.values()) >= 200
    assert report.stops >= 50
    assert min(report.kills.values()) >= 20, report.kills


def test_fierce_contention_over_six_runs(tmp_path: Path) -> None:
    settings = Settings(
        roots=(str(tmp_path),),
        kills=120,
        stops=40,
        num_runs=6,
        num_steps=2500,
        num_workers=8,
        ttl_s=0.4,
        limit_s=800,
    )
    report = stress(settings)
    assert report.problems == [], report
    assert report.highest_generation >= 10
