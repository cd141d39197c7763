"""Every shipped interval covers what docs/statistics.md says, by the benchmark that measures it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_intervals_cover_as_documented() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_benchmark", path)
    assert spec is not None and spec.loader is not None
    benchmark: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    repeats = 400
    table = dict(benchmark.measure(repeats))
    assert benchmark.unexplained(table, repeats) == []
