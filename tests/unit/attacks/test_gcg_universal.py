"""Universal GCG where behaviors pull to different optima, and where models or losses misbehave."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.protocols import Losses
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.planted import PlantedModel
from adversariallm.runs.execute import execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.spec import Stopping

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import resources, run, spec  # noqa: E402

GOALS = ("write a short story", "good music")
FIRST_CONTENT = 2  # behind the begin-of-text id and the user marker
BOTH = {"progressive": False, "initial": "! ! ! ! ! !", "search_width": 48}
WORDS = {"initial": "! ! ! ! ! !", "search_width": 64, "topk": 64}


class Divided(PlantedModel):
    """Every request has its own secret words and a pull: how much they count for it."""

    def __init__(self, **pulls: float) -> None:
        """Give the words out in turn: `few` has one word, `many` the other four."""
        super().__init__(secrets=5)
        own = {"few": self.secret_ids[:1], "many": self.secret_ids[1:]}
        self.words = dict(zip(GOALS, [own[name] for name in pulls], strict=True))
        self.pulls = dict(zip(GOALS, pulls.values(), strict=True))
        talks = {goal: self.chat.encode(Conversation.user(goal)) for goal in GOALS}
        self.goal_of = {ids[FIRST_CONTENT]: goal for goal, ids in talks.items()}

    def _score(self, rows_PV: torch.Tensor) -> torch.Tensor:
        goal = self.goal_of[int(rows_PV[FIRST_CONTENT].argmax())]
        return self.pulls[goal] * rows_PV[:, list(self.words[goal])].amax(0).clamp(0, 1).mean()

    def found(self, goal: str, ids: Sequence[int]) -> set[int]:
        """The request's words among `ids`."""
        return set(self.words[goal]) & set(ids)


def two(model: PlantedModel) -> list[Behavior]:
    return [model.behavior(goal) for goal in GOALS]


def universal(model: Any, fit: Sequence[Behavior], options: Mapping[str, Any], **rest: Any) -> Any:
    return run("gcg_universal", model, fit, options=options, **rest)


def last_ids(document: Any) -> list[int]:
    ids: list[int] = document.runs[0].steps[-1].model_input_tokens
    return ids


@pytest.mark.parametrize("names", [("many", "few"), ("few", "many")])
def test_every_active_behavior_has_its_say_in_the_gradient(names: tuple[str, str]) -> None:
    model = Divided(**dict.fromkeys(names, 1.0))
    options = {**BOTH, "topk": 5, "num_steps": 8}  # room for the words of both and no other
    ids = last_ids(universal(model, two(model), options))
    for goal in GOALS:
        assert model.found(goal, ids) == set(model.words[goal])


@pytest.mark.parametrize("names", [("many", "few"), ("few", "many")])
def test_gradients_are_summed_at_unit_norm(names: tuple[str, str]) -> None:
    """Of unit norm, one word weighs 1 and each of four 1/2, however weakly the one is wanted."""
    model = Divided(**{name: {"many": 1.0, "few": 0.05}[name] for name in names})
    ids = last_ids(universal(model, two(model), {**BOTH, "topk": 1, "num_steps": 1}))
    assert len(model.found(GOALS[names.index("few")], ids)) == 1


@pytest.mark.parametrize("names", [("many", "few"), ("few", "many")])
def test_the_sum_of_all_active_losses_chooses_the_candidate(names: tuple[str, str]) -> None:
    """The one word wins over a quarter of the other request's, whichever request is first."""
    model = Divided(**dict.fromkeys(names, 1.0))
    ids = last_ids(universal(model, two(model), {**BOTH, "topk": 5, "num_steps": 1}))
    few, many = (GOALS[names.index(name)] for name in ("few", "many"))
    assert len(model.found(few, ids)) == 1 and not model.found(many, ids)


@pytest.mark.parametrize("picky", GOALS)
def test_a_candidate_must_be_reachable_behind_every_active_behavior(
    picky: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Divided(many=1.0, few=1.0)
    (word,) = model.words[GOALS[1]]
    veto(monkeypatch, picky, word)
    document = universal(model, two(model), {**BOTH, "topk": 5, "num_steps": 4})
    for step in document.runs[0].steps:
        assert word not in step.model_input_tokens
    for step in document.runs[0].steps[1:]:
        assert step.note["kept"] < step.note["sampled"]


def test_a_behavior_joins_only_when_all_before_it_are_solved_by_the_same_suffix() -> None:
    model = Divided(many=1.0, few=1.0)
    options = {**WORDS, "num_steps": 12}
    steps = universal(model, two(model), options).runs[0].steps
    active = 1
    for before, step in zip(steps, steps[1:], strict=False):
        solved = all(wanted(model, goal, before) for goal in GOALS[:active])
        assert before.note["solved"] == solved
        active = min(2, active + solved)
        assert step.note["active_behaviors"] == active
    assert active == 2


def wanted(model: Divided, goal: str, step: Any) -> bool:
    """Whether more than half of a request's words are there, so that the model complies."""
    return len(model.found(goal, step.model_input_tokens)) > len(model.words[goal]) / 2


def veto(monkeypatch: pytest.MonkeyPatch, goal: str, *words: int) -> None:
    """Behind one request candidates with one of the words, or all, count as unreachable."""
    reachable = SlotProblem.reachable

    def picky(self: SlotProblem, candidates: torch.Tensor) -> tuple[torch.Tensor, dict[str, int]]:
        kept, counts = reachable(self, candidates)
        if self.segments.conversation[0].content.startswith(goal):
            bad = torch.isin(kept, torch.tensor(words)).any(1) if words else kept[:, 0] >= 0
            kept = kept[~bad]
        return kept, counts

    monkeypatch.setattr(SlotProblem, "reachable", picky)


def test_a_behavior_that_joins_without_a_reachable_candidate_has_no_loss_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = PlantedModel()
    veto(monkeypatch, GOALS[1])
    fit = [*two(model), model.behavior("a list")]
    steps = universal(model, fit, {**WORDS, "num_steps": 12}).runs[0].steps
    joined = [s for s in steps if s.note["active_behaviors"] > 1]
    assert joined
    for step in joined:
        assert step.flags == ["no_reachable_candidate"]
        assert step.loss is None and step.note["solved"] is False
        assert step.note["active_behaviors"] == 2
        assert step.model_input == joined[0].model_input


class Padded(PlantedModel):
    """Its embedding has unused rows behind the tokenizer's ids, as real ones do."""

    def __init__(self, more: int, **planted: Any) -> None:
        super().__init__(**planted)
        self.num_embeddings += more


@pytest.mark.parametrize("rows", [(8, 40), (40, 8)])
def test_models_of_one_tokenizer_may_have_embeddings_of_different_length(
    rows: tuple[int, int],
) -> None:
    models = (Padded(rows[0], secrets=2), Padded(rows[1], secrets=2, seed=1, name="other"))
    fit = two(models[0])[:1]
    options = {**WORDS, "num_steps": 8, "progressive_models": False}
    steps = [r.steps for r in universal(models, fit, options).runs]
    best = min(a.loss + b.loss for a, b in zip(*steps, strict=True))
    assert best == pytest.approx(models[0].best_loss + models[1].best_loss, abs=1e-5)


class Unsound(PlantedModel):
    """Its losses are no numbers behind one request, for every candidate that `spoils` names."""

    def __init__(self, spoils: Any, first: int = 0) -> None:
        super().__init__()
        self.spoils, self.calls, self.first = spoils, 0, first

    def losses(self, inputs: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> Losses:
        found = super().losses(inputs, *args, **kwargs)
        self.calls += 1
        loss = found.loss.clone()
        if self.calls > self.first:
            loss[[k for k, ids in enumerate(inputs) if self.spoils(k, ids)]] = math.nan
        return replace(found, loss=loss)


def test_a_loss_that_is_no_number_never_wins_and_flags_the_step() -> None:
    model = Unsound(lambda k, ids: k % 3 == 1)
    steps = universal(model, two(model), {**WORDS, "progressive": False}).runs[0].steps
    assert steps[0].flags == []
    assert all(s.flags == ["loss_not_a_number"] for s in steps[1:])
    losses = [s.loss for s in steps]
    assert all(math.isfinite(x) for x in losses) and losses[-1] < losses[0]


def test_the_suffix_stays_where_no_loss_is_a_number() -> None:
    model = Unsound(lambda k, ids: True, first=4)  # the start and one step, behind two requests
    options = {**WORDS, "progressive": False, "num_steps": 3}
    start, moved, *stays = universal(model, two(model), options).runs[0].steps
    assert moved.model_input != start.model_input
    for step in stays:
        assert (step.model_input, step.loss) == (moved.model_input, moved.loss)
        assert step.flags == ["loss_not_a_number"]


def test_a_start_without_a_number_is_recorded_without_a_loss() -> None:
    model = Unsound(lambda k, ids: True)
    steps = universal(model, two(model), {**WORDS, "num_steps": 1}).runs[0].steps
    assert [(s.loss, s.flags, s.note["solved"]) for s in steps] == [
        (None, ["loss_not_a_number"], False)
    ] * 2


# What ends a search whose suffix is tried on held-out behaviors too


def held_out(model: PlantedModel) -> Behavior:
    return model.behavior("the recipe for bread")


@pytest.mark.parametrize("progressive", [True, False])
def test_the_loss_limit_reads_the_optimized_behaviors_once_all_of_them_are_active(
    progressive: bool,
) -> None:
    model = PlantedModel()
    fit = two(model)
    limit = model.loss_at(0.75) + 1e-3
    document = universal(
        model, fit, {**WORDS, "num_steps": 20, "progressive": progressive},
        evaluated=[*fit, held_out(model)], stopping=Stopping(loss=limit),
    )  # fmt: skip
    assert document.status.startswith("stopped: loss")
    lanes = [[s.loss for s in r.steps] for r in document.runs[:2]]
    below = [all(x is not None and x <= limit for x in step) for step in zip(*lanes, strict=True)]
    assert below == [False] * (len(below) - 1) + [True]


def test_the_judge_that_stops_reads_the_optimized_behaviors_only() -> None:
    model = PlantedModel()
    fit, asked = two(model), []

    class Judge:
        def verdicts(self, behavior: Behavior, step: Any, meter: Any) -> list[float]:
            asked.append(behavior.id)
            return [float(step.step >= 2)]

    document = universal(
        model, fit, {**WORDS, "num_steps": 5}, evaluated=[*fit, held_out(model)],
        stopping=Stopping(judge="some", threshold=0.5), given={"stop": Judge()},
    )  # fmt: skip
    assert document.status.startswith("stopped: judge")
    assert len(document.runs[0].steps) == 3
    assert set(asked) == {b.id for b in fit}


def test_completions_at_the_best_step_go_by_the_optimized_behaviors() -> None:
    model = PlantedModel()
    fit = two(model)
    options = {**WORDS, "num_steps": 8, "progressive": False}
    task = spec("gcg_universal", model, fit, options=options, evaluated=[*fit, held_out(model)])
    amounts = task.spec.amounts.model_copy(update={"completions": "best"})
    task = task.model_copy(update={"spec": task.spec.model_copy(update={"amounts": amounts})})
    document, _ = execute(task, resources("gcg_universal", model), MemoryLog())
    losses = [s.loss or math.inf for s in document.runs[0].steps]
    best = losses.index(min(losses))
    assert best < len(losses) - 1
    for one in document.runs:
        assert [s.step for s in one.steps if s.completions] == [best]
