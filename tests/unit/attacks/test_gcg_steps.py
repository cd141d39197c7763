"""What a step of GCG keeps and records: buffer, momentum, early stop, losses that are NaN."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import gcg
from adversariallm.attacks._kit.ranking import NOT_A_NUMBER
from adversariallm.core.budget import Ledgers
from adversariallm.core.protocols import Losses
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, run, stable  # noqa: E402

WORDS = {"initial": "! ! ! ! ! !", "search_width": 8, "topk": 64}


@pytest.fixture(scope="module")
def planted() -> PlantedModel:
    return PlantedModel()


def steps_of(model: Any, **options: Any) -> list[Any]:
    behavior = model.behavior() if isinstance(model, PlantedModel) else behaviors()[0]
    return run("gcg", model, [behavior], options={**WORDS, **options}).runs[0].steps


@pytest.mark.parametrize(
    "options",
    [
        {"grad_momentum": 0.9, "num_steps": 4},
        {"buffer_size": 3, "search_width": 2, "num_steps": 6},
        {"early_stop": True, "search_width": 64, "num_steps": 20},
        {"grow_target": True, "search_width": 64, "num_steps": 4},
    ],
    ids=lambda o: next(iter(o)),
)
def test_what_a_search_remembers_outlives_a_cut(options: dict[str, Any]) -> None:
    planted: Any = PlantedModel()
    model = tiny_model("llama") if "grad_momentum" in options else planted
    fit = [behaviors()[0]] if "grad_momentum" in options else [planted.behavior()]
    options = {**WORDS, **options}
    log = MemoryLog()
    whole = run("gcg", model, fit, options=options, log=log)
    steps = [k for k, entry in enumerate(log.entries) if entry.kind == "step"]
    assert len(steps) >= 3
    for cut in steps:
        rest = MemoryLog(log.entries[: cut + 1])
        again = run("gcg", model, fit, options=options, log=rest)
        assert stable(again) == stable(whole), f"cut after entry {cut}"


def test_momentum_keeps_its_share_of_the_gradient_before(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[torch.Tensor] = []
    used: list[torch.Tensor] = []
    gradient, token_scores = gcg.SlotProblem.gradient, gcg.SlotProblem.token_scores

    def watched_gradient(self: Any, *args: Any, **rest: Any) -> Any:
        slope = gradient(self, *args, **rest)
        found.append(slope.slot)
        return slope

    def watched_scores(self: Any, slope: torch.Tensor) -> torch.Tensor:
        used.append(slope)
        return token_scores(self, slope)

    monkeypatch.setattr(gcg.SlotProblem, "gradient", watched_gradient)
    monkeypatch.setattr(gcg.SlotProblem, "token_scores", watched_scores)
    steps_of(planted, num_steps=3, grad_momentum=0.75)
    expected = found[0]
    assert torch.equal(used[0], expected)
    for slope, scored in zip(found[1:], used[1:], strict=True):
        expected = 0.75 * expected + 0.25 * slope
        torch.testing.assert_close(scored, expected)


def test_momentum_is_kept_by_embedding_dimension_not_by_vocabulary() -> None:
    model: Any = tiny_model("llama")
    log = MemoryLog()
    options = {**WORDS, "num_steps": 1, "grad_momentum": 0.5}
    run("gcg", model, [behaviors()[0]], options=options, log=log)
    kept = [
        t
        for entry in log.entries
        if entry.kind == "step"
        for key, t in entry.tensors().items()
        if "momentum" in key
    ]
    width = model.embed([0]).shape[1]
    assert [t.shape[1] for t in kept] == [width] and width < model.num_embeddings


def test_with_a_buffer_step_zero_is_still_the_start_and_step_one_fills_it(
    planted: PlantedModel,
) -> None:
    options = {"num_steps": 2, "filter": "none"}
    plain = steps_of(planted, **options)
    behavior = planted.behavior()
    document = run("gcg", planted, [behavior], options={**WORDS, **options, "buffer_size": 5})
    start, first, second = document.runs[0].steps
    assert (start.model_input, start.loss) == (plain[0].model_input, plain[0].loss)
    queries = [
        Ledgers.from_dict(s.ledgers).total("optimization").queries for s in (start, first, second)
    ]
    assert queries == [1, 4 + 1 + 8, 1 + 8]


def test_the_search_goes_on_from_the_best_of_the_filled_buffer(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(problem: Any, size: int, rng: Any) -> torch.Tensor:
        best = problem.start.clone()
        best[: len(planted.secret_ids)] = torch.tensor(planted.secret_ids)
        return torch.stack([problem.start, best])

    monkeypatch.setattr(gcg, "random_fill", fill)
    _, first = steps_of(planted, num_steps=1, buffer_size=2, filter="none")
    assert first.loss == pytest.approx(planted.best_loss, abs=1e-5)


def test_the_length_of_a_step_is_the_one_its_candidates_were_scored_at(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    losses = gcg.SlotProblem.losses

    def watched(self: Any, rows: Any, *args: Any, **rest: Any) -> Losses:
        if len(rows) > 1:
            scored.append(rest["length"])
        return losses(self, rows, *args, **rest)

    monkeypatch.setattr(gcg.SlotProblem, "losses", watched)
    steps = steps_of(planted, num_steps=8, grow_target=True, search_width=64)
    assert [s.note["length"] for s in steps[1:]] == scored
    assert len(set(scored)) > 1


@pytest.mark.parametrize("selection", ["gradient", "random_overall", "random_per_position"])
def test_a_rank_is_the_place_in_the_order_of_the_gradient(
    planted: PlantedModel, selection: str
) -> None:
    steps = steps_of(planted, num_steps=3, token_selection=selection, search_width=32)[1:]
    if selection == "gradient":
        # the planted loss falls with the linear promise: what is moved to was promised most
        assert [s.note["rank"] for s in steps] == [0, 0, 0]
    else:
        assert [s.note["rank"] for s in steps] == [None] * 3


@pytest.mark.parametrize("broken", [False, True])
def test_proposals_without_a_gradient_are_at_uniform_positions(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    seen: list[torch.Tensor] = []
    reachable, gradient = gcg.SlotProblem.reachable, gcg.SlotProblem.gradient

    def watched(self: Any, rows: torch.Tensor) -> Any:
        seen.append(rows)
        return reachable(self, rows)

    def not_finite(self: Any, *args: Any, **rest: Any) -> Any:
        return dataclasses.replace(gradient(self, *args, **rest), finite=False)

    monkeypatch.setattr(gcg.SlotProblem, "reachable", watched)
    if broken:
        monkeypatch.setattr(gcg.SlotProblem, "gradient", not_finite)
    selection = "gradient" if broken else "random_overall"
    steps_of(planted, num_steps=1, token_selection=selection, search_width=60)
    changed = (seen[0] != seen[0].mode(0).values).nonzero()[:, 1].tolist()
    assert len(changed) > 50 and changed != sorted(changed)


class Broken(PlantedModel):
    """Losses of the candidates that `where` picks are NaN."""

    def __init__(self, where: Any) -> None:
        super().__init__()
        self.where = where

    def losses(self, inputs: Any, targets: Any, **rest: Any) -> Losses:
        found = super().losses(inputs, targets, **rest)
        picked = [self.where(k, len(inputs)) for k in range(len(inputs))]
        loss = found.loss.masked_fill(torch.tensor(picked), math.nan)
        each = [t * math.nan if p else t for t, p in zip(found.per_token, picked, strict=True)]
        return dataclasses.replace(found, loss=loss, per_token=tuple(each))


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_a_candidate_whose_loss_is_no_number_is_never_moved_to(buffer_size: int) -> None:
    model: Any = Broken(lambda k, count: count > 1 and k % 2 == 0)
    steps = steps_of(model, num_steps=4, buffer_size=buffer_size)
    assert all(s.loss is not None and math.isfinite(s.loss) for s in steps)
    assert [NOT_A_NUMBER in s.flags for s in steps] == [False, True, True, True, True]
    assert steps[-1].loss < steps[0].loss


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_where_no_loss_is_a_number_the_search_stays_and_says_so(buffer_size: int) -> None:
    model: Any = Broken(lambda k, count: count > 1)
    start, *rest = steps_of(model, num_steps=2, buffer_size=buffer_size)
    assert not start.flags and [s.flags for s in rest] == [[NOT_A_NUMBER]] * 2
    for step in rest:
        assert (step.model_input, step.loss) == (start.model_input, start.loss)
        assert step.note["rank"] is None


@pytest.mark.parametrize("buffer_size", [0, 3])
def test_a_start_whose_loss_is_no_number_has_none_and_the_search_leaves_it(
    buffer_size: int,
) -> None:
    model: Any = Broken(lambda k, count: count == 1)
    start, first = steps_of(model, num_steps=1, buffer_size=buffer_size)
    assert start.loss is None and start.flags == [NOT_A_NUMBER]
    assert first.loss is not None and not first.flags
