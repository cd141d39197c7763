"""BEAST: where proposals come from, distinct beams, and what is scored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import beast
from adversariallm.attacks._kit.proposals import distinct_multinomial
from adversariallm.attacks._kit.ranking import NOT_A_NUMBER
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.budget import Ledgers
from adversariallm.core.protocols import Logits, Losses
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.stored import raisable

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, run  # noqa: E402


class Watching:
    """Remembers what was asked for next-token logits and losses."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.proposals: list[list[tuple[int, ...]]] = []
        self.scored: list[list[tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def next_logits(self, inputs: Any, **rest: Any) -> Any:
        self.proposals.append([tuple(i) for i in inputs])
        return self._model.next_logits(inputs, **rest)

    def losses(self, inputs: Any, targets: Any, **rest: Any) -> Any:
        self.scored.append([tuple(i) for i in inputs])
        return self._model.losses(inputs, targets, **rest)


@pytest.fixture(scope="module")
def watched() -> tuple[Watching, Any]:
    model = Watching(tiny_model("llama"))
    document = run("beast", model, [behaviors()[0]], options={"num_tokens": 4, "k1": 3, "k2": 4})
    return model, document


def test_tokens_are_proposed_at_the_end_of_the_suffix_not_by_the_assistant(
    watched: tuple[Watching, Any],
) -> None:
    model, _ = watched
    clean = model.chat.segments(behaviors()[0].conversation)
    tail = clean.ids[clean.named("post")[0].start :]
    assert len(tail) > 0
    for step, inputs in enumerate(model.proposals):
        for ids in inputs:
            assert ids[-len(tail) :] != tail
            assert len(ids) == len(clean.ids) - len(tail) + step


def test_candidates_are_distinct_and_all_of_the_steps_length(
    watched: tuple[Watching, Any],
) -> None:
    model, _ = watched
    for inputs in model.scored[1:]:
        assert len(set(inputs)) == len(inputs)
        assert len({len(i) for i in inputs}) == 1


def test_step_zero_is_the_clean_prompt_and_steps_grow_by_one_token(
    watched: tuple[Watching, Any],
) -> None:
    model, document = watched
    steps = document.runs[0].steps
    assert len(steps) == 5
    clean = model.chat.encode(behaviors()[0].conversation)
    assert steps[0].model_input_tokens == list(clean)
    grown = [len(s.model_input_tokens) - len(clean) for s in steps if not s.flags]
    assert grown == list(range(len(grown)))


def test_best_so_far_is_the_lowest_loss_yet(watched: tuple[Watching, Any]) -> None:
    _, document = watched
    lowest = float("inf")
    for step in document.runs[0].steps:
        lowest = min(lowest, step.loss)
        assert step.note["best_so_far"] == pytest.approx(lowest)


def test_an_initial_text_is_the_start_of_every_beam() -> None:
    planted = PlantedModel()
    options = {"initial": " good music", "num_tokens": 3, "k1": 2, "k2": 2}
    document = run("beast", planted, [planted.behavior()], options=options)
    for step in document.runs[0].steps:
        assert step.model_input[-1]["content"].startswith("write a short story good music")


def test_wide_beams_find_all_planted_words() -> None:
    planted = PlantedModel()
    options = {"k1": 6, "k2": 80, "num_tokens": 5, "temperature": 1e4}
    document = run("beast", planted, [planted.behavior()], options=options)
    losses = [s.loss for s in document.runs[0].steps]
    assert min(losses) == pytest.approx(planted.best_loss, abs=1e-5)
    best = document.runs[0].steps[losses.index(min(losses))]
    assert planted.score(best.model_input_tokens) == 1.0


def test_queries_by_hand() -> None:
    """One start; then k1 proposals from one beam, later k1 beams with k2 tokens each."""
    planted = PlantedModel()
    document = run(
        "beast", planted, [planted.behavior()], options={"num_tokens": 3, "k1": 3, "k2": 2}
    )
    steps = document.runs[0].steps
    kept = [s.note["kept"] for s in steps[1:]]
    beams = [1, min(3, kept[0]), min(3, kept[1])]
    total = Ledgers.from_dict(document.ledgers).total("optimization").queries
    assert total == 1 + sum(beams) + sum(kept)


def test_the_nucleus_and_top_k_cut_the_proposals() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])

    class Fixed:
        chat = None

        def next_logits(self, inputs: Any, shared: int = 0) -> Any:
            return Logits(logits)

    class Problem:
        model = Fixed()
        allowed = torch.tensor([True, True, False, True])

        class segments:  # noqa: N801  -- stands for an attribute
            before = (1,)

    def probs(**options: Any) -> list[float]:
        attack = beast.Attack(beast.Config(**options))
        return attack._distribution(Problem(), [(5,)])[0].tolist()  # type: ignore[arg-type]

    everything = probs()
    assert everything[2] == 0 and sum(everything) == pytest.approx(1)
    assert [p > 0 for p in probs(top_k=2)] == [True, True, False, False]
    assert [p > 0 for p in probs(top_p=0.5)] == [True, False, False, False]
    assert probs(temperature=100.0)[3] == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(("k1", "k2"), [(1, 6), (3, 2)])
def test_k1_tokens_are_drawn_from_the_start_and_k2_from_every_later_beam(k1: int, k2: int) -> None:
    planted = PlantedModel()
    options = {"num_tokens": 3, "k1": k1, "k2": k2}
    steps = run("beast", planted, [planted.behavior()], options=options).runs[0].steps
    drawn = [s.note["sampled"] // (s.note["resampled"] + 1) for s in steps[1:]]
    assert drawn == [k1, k1 * k2, k1 * k2]


def test_a_single_beam_left_by_the_filter_still_draws_k2_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = SlotProblem.reachable
    monkeypatch.setattr(SlotProblem, "reachable", lambda p, rows: whole(p, rows[:1]))
    monkeypatch.setattr(beast, "RESAMPLES", 1)
    asked: list[int] = []

    def drawn(probs: torch.Tensor, k: int, generator: torch.Generator) -> list[torch.Tensor]:
        asked.append(k)
        return distinct_multinomial(probs, k, generator)

    monkeypatch.setattr(beast, "distinct_multinomial", drawn)
    planted = PlantedModel()
    run("beast", planted, [planted.behavior()], options={"num_tokens": 3, "k1": 3, "k2": 7})
    assert asked == [3, 7, 7]


def test_a_finished_search_can_be_extended() -> None:
    """`tests/contract/test_extension.py` then holds it to equal one that was longer at first."""
    assert raisable("beast") == "num_tokens"


def test_a_beam_without_a_number_is_not_kept_even_where_there_is_room() -> None:
    class Problem:
        def losses(self, rows: Any) -> Any:
            loss = torch.tensor([float("nan"), 2.0, 1.0][: len(rows)])
            return Losses(loss, (), torch.zeros(len(rows), dtype=torch.bool))

    attack = beast.Attack(beast.Config(k1=3))
    beams, losses, flags = attack._best(Problem(), [(1,), (2,), (3,)])  # type: ignore[arg-type]
    assert (beams, losses.tolist(), flags) == ([(3,), (2,)], [1.0, 2.0], (NOT_A_NUMBER,))
    beams, _, flags = attack._best(Problem(), [(1,)])  # type: ignore[arg-type]
    assert (beams, flags) == ([], (NOT_A_NUMBER,))
