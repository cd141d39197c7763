"""Random search: its neighbors, and that it never moves to something worse."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from adversariallm.attacks import random_search
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.budget import Budget, Meter
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Context
from adversariallm.core.rng import Rng
from adversariallm.models.planted import PlantedModel
from adversariallm.tokenization import Slot

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import run  # noqa: E402


def test_neighbors_differ_at_one_to_radius_places_and_use_allowed_ids_only() -> None:
    planted = PlantedModel()
    problem = SlotProblem.build(planted, planted.behavior(), Slot("suffix", "! ! ! ! ! !", "space"))
    attack = random_search.Attack(random_search.Config(num_candidates=600, radius=3))
    ctx = Context(
        models=(planted,), rng=Rng.root(0), meter=Meter(Budget()), generation=GenerationConfig(),
        log=lambda **values: None,
    )  # fmt: skip
    rows = attack._neighbors(problem, problem.start, ctx, 1)
    changed = (rows != problem.start).sum(1)
    sizes = Counter(changed.tolist())
    assert max(sizes) == 3 and {1, 2, 3} <= set(sizes)
    for size in (1, 2, 3):  # an id may be drawn again, so a few have one change less
        assert sizes[size] / 600 == pytest.approx(1 / 3, abs=0.08)
    assert bool(problem.allowed[rows[rows != problem.start]].all())
    assert not torch.equal(rows, attack._neighbors(problem, problem.start, ctx, 2))


def test_the_start_is_scored_and_only_something_better_replaces_it() -> None:
    planted = PlantedModel()
    options = {"initial": "! ! ! !", "num_steps": 12, "num_candidates": 16}
    steps = run("random_search", planted, [planted.behavior()], options=options).runs[0].steps
    assert steps[0].model_input[-1]["content"].endswith("! ! ! !")
    for before, after in zip(steps, steps[1:], strict=False):
        assert after.loss < before.loss if after.note["accepted"] else after.loss == before.loss
        assert after.note["accepted"] or after.model_input == before.model_input


@pytest.mark.parametrize("placement", ["prefix", "both", "turn"])
def test_the_slot_may_be_elsewhere(placement: str) -> None:
    planted = PlantedModel()
    options = {"placement": placement, "num_steps": 4, "num_candidates": 64}
    document = run("random_search", planted, [planted.behavior()], options=options)
    assert document.status == "done"
    assert len({str(s.model_input) for s in document.runs[0].steps}) > 1
