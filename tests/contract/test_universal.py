"""The contract of attacks that fit many behaviors at once: invariants, resume, budgets, fronts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.budget import Budget, Ledgers
from adversariallm.core.errors import NeedsError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.records import RunDocument
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parent))
import harness  # noqa: E402  -- beside this file
import invariants  # noqa: E402
from harness import behaviors, run, stable  # noqa: E402

MANY = [n for n in ATTACKS.names() if ATTACKS.load(n).INFO.fits == "many"]


def held_out() -> Behavior:
    talk = Conversation.user("a letter to a friend")
    return Behavior("held", talk, talk[0].content, True, harness.TARGET, "dataset")


@pytest.fixture(scope="module")
def tiny() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def documents(tiny: Any) -> dict[str, RunDocument]:
    """Each such attack fitted on two behaviors and sent to a third one as well."""
    fit = behaviors()[:2]
    return {name: run(name, tiny, fit, evaluated=[*fit, held_out()]) for name in MANY}


@pytest.mark.parametrize("name", MANY)
def test_the_invariants_hold_for_every_evaluated_behavior(
    documents: Any, tiny: Any, name: str
) -> None:
    document = documents[name]
    info = ATTACKS.load(name).INFO
    everyone = [*behaviors()[:2], held_out()]
    assert len(document.runs) == 3
    for index, behavior in enumerate(everyone):
        steps = document.runs[index].steps
        assert [s.step for s in steps] == list(range(len(steps)))
        assert all(s.completions for s in steps)
        assert invariants.recorded_ids(document, tiny, index=index) == len(steps)
        invariants.recorded_losses(document, tiny, behavior, index=index, tolerance=1e-5)
        invariants.target_absent(document, behavior, index=index)
        invariants.outside_untouched(document, behavior, info, index=index)
    invariants.legal_ids(document, tiny)
    invariants.ledgers_add_up(document)


@pytest.mark.parametrize("name", MANY)
def test_held_out_behaviors_never_guide_the_search(documents: Any, tiny: Any, name: str) -> None:
    alone = run(name, tiny, behaviors()[:2])
    for one, other in zip(alone.runs, documents[name].runs, strict=False):
        assert [s.model_input for s in one.steps] == [s.model_input for s in other.steps]
    suffixes = {s.model_input[-1]["content"][-12:] for s in
                (r.steps[-1] for r in documents[name].runs)}  # fmt: skip
    assert len(suffixes) == 1


@pytest.mark.parametrize("name", MANY)
def test_a_run_cut_anywhere_continues_to_the_same_end(tiny: Any, name: str) -> None:
    log = MemoryLog()
    fit = behaviors()[:2]
    counting = harness.Counting(tiny)
    whole = run(name, counting, fit, log=log)
    for cut in range(1, len(log.entries)):
        rest = harness.Counting(tiny)
        again = run(name, rest, fit, log=MemoryLog(log.entries[:cut]))
        assert stable(again) == stable(whole), f"cut after entry {cut}"
        assert rest.queries == counting.queries[len(counting.queries) - len(rest.queries) :]


@pytest.mark.parametrize("name", MANY)
def test_query_and_flop_limits_stop_cleanly(documents: Any, tiny: Any, name: str) -> None:
    fit = behaviors()[:2]
    whole = Ledgers.from_dict(documents[name].ledgers).total("setup", "optimization")
    for queries in (1, whole.queries // 2):
        document = run(name, tiny, fit, budget=Budget(queries=queries))
        spent = Ledgers.from_dict(document.ledgers).total("setup", "optimization")
        assert spent.queries <= queries
        assert document.status.startswith("stopped: budget.queries")
    document = run(name, tiny, fit, budget=Budget(flops=(whole.flops or 0) // 2))
    assert document.status.startswith("stopped: budget.flops")
    for few, many in zip(document.runs[0].steps, documents[name].runs[0].steps, strict=False):
        assert (few.model_input, few.loss) == (many.model_input, many.loss)


def planted_set(model: PlantedModel) -> list[Behavior]:
    return [model.behavior(goal) for goal in ("write a short story", "good music", "a list")]


WORDS = {"initial": "! ! ! ! ! !", "search_width": 64, "topk": 64, "num_steps": 14}


def test_behaviors_and_then_models_join_one_after_the_other_as_they_are_solved() -> None:
    models = (PlantedModel(), PlantedModel(seed=1, name="planted-1"))
    fit = planted_set(models[0])
    document = run("gcg_universal", models, fit, options={**WORDS, "num_steps": 30})
    steps = document.runs[0].steps
    fronts = [(s.note["active_models"], s.note["active_behaviors"]) for s in steps]
    assert fronts[0] == (1, 1)
    for before, after, step in zip(fronts, fronts[1:], steps, strict=False):
        if not step.note["solved"]:
            assert after == before
        elif before[1] < 3:
            assert after == (before[0], before[1] + 1)
        elif before[0] < 2:
            assert after == (2, 1)  # the next model begins with the first behavior again
    assert (1, 3) in fronts and fronts[-1][0] == 2


def test_without_the_schedule_everything_is_active_from_the_start() -> None:
    planted = PlantedModel()
    options = {**WORDS, "progressive": False}
    document = run("gcg_universal", planted, planted_set(planted), options=options)
    assert {s.note["active_behaviors"] for s in document.runs[0].steps} == {3}
    best = min(s.loss for s in document.runs[0].steps)
    assert best == pytest.approx(planted.best_loss, abs=1e-5)


def test_the_suffix_reaches_held_out_behaviors() -> None:
    planted = PlantedModel()
    fit = planted_set(planted)
    document = run(
        "gcg_universal", planted, fit[:2], evaluated=fit, options={**WORDS, "progressive": False}
    )
    last = document.runs[2].steps[-1]
    assert last.loss is None
    assert planted.score(last.model_input_tokens) == 1.0
    assert last.model_completions[0].startswith("Sure")


def test_models_with_different_tokenizers_are_refused() -> None:
    models = (PlantedModel(), tiny_model("llama"))
    other = replace(models[0].behavior(), target="Sure")
    models[1].chat.codec.content_hash = "another"
    with pytest.raises(NeedsError, match="2 different tokenizers"):
        run("gcg_universal", models, [other])


CHANGED: dict[str, object] = {
    "num_steps": 4,
    "search_width": 6,
    "topk": 4,
    "initial": "x x x",
    "join": "none",
    "progressive": False,
    "progressive_models": False,
    "allow_non_ascii": True,
}


def test_every_option_changes_something() -> None:
    config = ATTACKS.load("gcg_universal").Config
    assert set(CHANGED) == set(config.model_fields)
    models = (harness.contract_model(), harness.contract_model())

    def shape(**options: object) -> list[object]:
        document = run("gcg_universal", models, behaviors()[:2], options=options)
        return [(s.model_input, s.note, s.ledgers["optimization"]) for s in document.runs[0].steps]

    plain = shape()
    assert [f for f, value in CHANGED.items() if shape(**{f: value}) == plain] == []
