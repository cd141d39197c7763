"""The store under at least 200 kill -9 and 50 SIGSTOP over claim, step, publish and score."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adversariallm.runs.stress import Settings, stress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_hundred_kills_and_fifty_freezes(tmp_path: Path) -> None:
    settings = Settings(
        roots=(str(tmp_path),), kills=200, stops=50, num_runs=400, num_steps=40, limit_s=800
    )
    report = stress(settings)
    print(report)  # noqa: T201
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
    print(report)  # noqa: T201
    assert report.problems == [], report
    assert report.highest_generation >= 10


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """One directory seen through three mounts that may tell what was true two seconds ago."""
    if shutil.which("bindfs") is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs bindfs and /dev/fuse")
    (tmp_path / "real").mkdir()
    options = "attr_timeout=2,entry_timeout=2,negative_timeout=2"
    made = []
    try:
        for number in range(3):
            mount = tmp_path / f"mount{number}"
            mount.mkdir()
            subprocess.run(["bindfs", "-o", options, tmp_path / "real", mount], check=True)
            made.append(str(mount))
        yield tuple(made)
    finally:
        for mounted in made:
            subprocess.run(["umount", "-l", mounted], check=True)


def test_hosts_with_stale_caches(mounts: tuple[str, ...]) -> None:
    settings = Settings(
        roots=mounts, kills=30, stops=8, num_runs=24, num_steps=60, num_workers=6, ttl_s=6.0
    )
    report = stress(settings)
    assert report.problems == [], report
