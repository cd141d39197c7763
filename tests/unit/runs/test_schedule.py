from __future__ import annotations

import pytest

from adversariallm.runs.schedule import scheduled

LOSSES = [3.0, 2.5, 2.5, 4.0, 1.0, 1.5]


@pytest.mark.parametrize(
    ("schedule", "losses", "steps"),
    [
        ("all", LOSSES, [0, 1, 2, 3, 4, 5]),
        ("last", LOSSES, [5]),
        ("best", LOSSES, [4]),
        ("best", [2.0, 1.0, 1.0], [1]),
        ("best", [None, None], [1]),
        ("best_so_far", LOSSES, [0, 1, 4]),
        ("best_so_far", [None, None], [1]),
        ("geometric", LOSSES, [0, 1, 2, 4, 5]),
        ("geometric", [1.0], [0]),
        ("geometric", [1.0] * 9, [0, 1, 2, 4, 8]),
        ("none", LOSSES, []),
        ("all", [], []),
    ],
)
def test_scheduled_steps(schedule: str, losses: list, steps: list[int]) -> None:
    assert scheduled(schedule, losses) == steps
