"""Every shipped interval covers what docs/statistics.md says, by the benchmark that measures it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

REPEATS = 400


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BENCHMARK.NAMES)
def test_an_interval_covers_as_documented(name: str) -> None:
    table = dict(BENCHMARK.measure(REPEATS, [name]))
    assert list(table) == [name]
    assert BENCHMARK.unexplained(table, REPEATS) == []


@pytest.mark.slow
def test_the_simulation_sees_an_interval_that_is_too_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def narrow(hits: float, n: float) -> Any:
        return BENCHMARK.wilson(hits, n, 0.8)

    monkeypatch.setitem(BENCHMARK.EXACT, "wilson", narrow)
    missed = BENCHMARK.unexplained(dict(BENCHMARK.measure(REPEATS, ["wilson"])), REPEATS)
    assert any("wilson n=300" in line for line in missed)
