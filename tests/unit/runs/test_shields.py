"""Defenses in a run: who is attacked, what they cost, and who pays for what."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.budget import Budget, Ledgers, Meter, Usage
from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses._kit.defended import Defended
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.metered import MeteredModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.execute import execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.shields import DefenseJudge
from adversariallm.runs.spec import PluginSpec
from adversariallm.runs.worker import Workshop
from judgezoo import Judge

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, spec  # noqa: E402

PROMPT = PluginSpec(name="system_prompt", version=1)
FILTER = PluginSpec(name="perplexity_filter", version=1)


@cache
def tiny() -> Any:
    return tiny_model("llama")


def workshop(model: Any) -> Workshop:
    return Workshop(models={stable_hash(dict(model.identity())): model})


def test_an_unaware_attacker_sees_the_bare_model_and_others_the_defended_one() -> None:
    shop = workshop(tiny())
    for knowledge in ("unaware", "black_box", "adaptive"):
        task = spec("direct", tiny(), behaviors()[:1], defense=(PROMPT,), knowledge=knowledge)
        found = shop.resources(task)
        assert isinstance(found.models[0], Defended)
        assert found.bare == (tiny(),)
        assert (found.attacked[0] is tiny()) == (knowledge == "unaware")
    plain = shop.resources(spec("direct", tiny(), behaviors()[:1]))
    assert (plain.models, plain.bare) == ((tiny(),), ())


def test_runs_that_are_defended_alike_share_the_defense() -> None:
    shop = workshop(tiny())

    def model(**options: Any) -> Any:
        plugin = PluginSpec(name="system_prompt", version=1, options=options)
        task = spec("direct", tiny(), behaviors()[:1], defense=(plugin,))
        return shop.resources(task).models[0]

    assert model() is model()
    assert model(text="a") is not model(text="b")


def test_a_calibration_is_set_up_booked_once_and_no_attackers_budget_pays() -> None:
    budget = Budget(queries=4)
    task = spec(
        "random_search", tiny(), behaviors()[:1], defense=(FILTER,), knowledge="adaptive",
        budget=budget,
    )  # fmt: skip
    resources = workshop(tiny()).resources(task)
    whole = MemoryLog()
    document, _ = execute(task, resources, whole)
    ledgers = Ledgers.from_dict(document.ledgers)
    assert ledgers.total("setup", role="defense").queries == 40
    assert 0 < ledgers.total("optimization").queries <= 4
    log = MemoryLog(whole.entries[:1])
    resumed, _ = execute(task, resources, log)
    assert resumed.ledgers == document.ledgers


def test_the_bare_models_answers_are_asked_for_beside_and_booked_as_diagnosis() -> None:
    task = spec("direct", tiny(), behaviors()[:1], defense=(PROMPT,), samples=3)
    document, _ = execute(task, workshop(tiny()).resources(task), MemoryLog())
    ledgers = Ledgers.from_dict(document.ledgers)
    assert ledgers.total("diagnosis", role="model").queries == 3
    assert ledgers.total("sampling", role="model").queries == 3
    [step] = document.runs[0].steps
    bare = spec("direct", tiny(), behaviors()[:1], samples=3)
    plain, _ = execute(bare, workshop(tiny()).resources(bare), MemoryLog())
    said = plain.runs[0].steps[0].model_completions
    assert [c.undefended for c in step.completions] == said
    assert step.model_completions != said


def test_an_answer_that_the_defense_learned_on_its_way_is_not_asked_for_again() -> None:
    task = spec("direct", tiny(), behaviors()[:1], defense=(FILTER,), samples=2)
    document, _ = execute(task, workshop(tiny()).resources(task), MemoryLog())
    [step] = document.runs[0].steps
    withheld = sum(c.finish_reason == "content_filter" for c in step.completions)
    diagnosis = Ledgers.from_dict(document.ledgers).total("diagnosis", role="model").queries
    assert diagnosis == withheld


def test_an_unaware_attackers_own_answer_is_no_completion() -> None:
    from harness import helpers_for  # beside the contract tests

    for knowledge, in_loop in (("unaware", False), ("black_box", True)):
        task = spec("crescendo", tiny(), behaviors()[:1], defense=(PROMPT,), knowledge=knowledge)
        found = workshop(tiny()).resources(task)
        resources = type(found)(
            models=found.models, attacked=found.attacked, bare=found.bare,
            helpers=helpers_for("crescendo"), assets=assets_of("crescendo"),
        )  # fmt: skip
        document, _ = execute(task, resources, MemoryLog())
        completions = [c for s in document.runs[0].steps for c in s.completions]
        assert completions
        assert all(c.in_loop == in_loop for c in completions)
        assert all(c.undefended is not None for c in completions)


def assets_of(attack: str) -> dict[str, str]:
    from adversariallm.core.plugins import ATTACKS

    return dict(getattr(ATTACKS.load(attack), "EXAMPLE_ASSETS", {}))


def test_a_judge_in_a_defense_reads_one_conversation_at_a_time_and_tells_its_cost() -> None:
    class Costly:
        """Asks a model that costs as many FLOPs as the answer has characters."""

        info = Judge.available()["refusal_prefix"]

        def __init__(self, meter: Meter) -> None:
            self._model = MeteredModel(ScriptedModel(self._answer), meter, role="judge")

        @staticmethod
        def _answer(conversation: Conversation, rng: Rng) -> Reply:
            text = conversation[0].content
            return Reply("", usage=Usage(queries=1, flops=len(text)))

        def __call__(self, conversations: Any, contexts: Any) -> dict[str, list[Any]]:
            for talk, facts in zip(conversations, contexts, strict=True):
                assert facts == {"goal": talk[0]["content"]}
                asked = Conversation.user(talk[-1]["content"])
                self._model.generate([asked], GenerationConfig(), [Rng.root(0)])
            return {"p_harmful": [0.25] * len(conversations), "error": [None] * len(conversations)}

    judge: Any = DefenseJudge(Costly)  # type: ignore[arg-type]
    talks = [Conversation.user("q").append("assistant", "x" * n) for n in (3, 8)]
    assert [(v.score, v.usage.flops) for v in judge.verdicts(talks)] == [(0.25, 3), (0.25, 8)]
    assert judge.threshold == 0.5


def test_a_real_judge_gives_scores_and_error_codes() -> None:
    judge = DefenseJudge(lambda meter: Judge.from_name("refusal_prefix"))
    refusing = Conversation.user("q").append("assistant", "I'm sorry, but I can't help with that.")
    answering = Conversation.user("q").append("assistant", "Take the second street.")
    found = judge.verdicts([refusing, answering, Conversation.user("no answer")])
    assert [v.score for v in found] == [0.0, 1.0, None]
    assert found[2].error == "invalid_chat"


@pytest.mark.parametrize("knowledge", ["unaware", "adaptive"])
def test_recorded_ids_are_those_that_the_attacker_made(knowledge: str) -> None:
    task = spec("gcg", tiny(), behaviors()[:1], defense=(PROMPT,), knowledge=knowledge)
    resources = workshop(tiny()).resources(task)
    document, _ = execute(task, resources, MemoryLog())
    for step in document.runs[0].steps:
        talk = Conversation.from_dicts(step.model_input or [])
        seen: Any = resources.attacked[0]
        assert step.model_input_tokens == list(seen.chat.encode(talk))
        assert step.flags == []
