"""What the model reads is the paraphrase; a writer that fails withholds the answer."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.protocols import Supplies
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses.paraphrase import INSTRUCTION, Config, wrap
from adversariallm.models.fakes import ScriptedModel

from .doubles import ask, costing, prompt_of


def shouted(conversation: Conversation, rng: Rng) -> str:
    return " " + prompt_of(conversation).removeprefix(INSTRUCTION).upper() + "\n"


def behind(writer: Any, model: ScriptedModel | None = None) -> Any:
    inner = model or costing(lambda c, rng: "re: " + prompt_of(c))
    return wrap(inner, Config(), Supplies(helpers={"defense": writer}))


def test_the_model_answers_the_paraphrase_and_the_writer_is_the_defenses_cost() -> None:
    [reply] = ask(behind(costing(shouted)), "hello")
    assert reply.text == "re: HELLO"
    assert (reply.usage.flops, reply.defense_usage.flops, reply.executed) == (10, 10, 24)
    assert reply.defense_usage.queries == 1
    assert reply.raw["defense"] == [{"name": "paraphrase", "prompt": "HELLO", "cut": False}]
    assert reply.undefended is None


@pytest.mark.parametrize("failure", [Reply("x", error="timeout"), Reply("  ")])
def test_a_writer_that_fails_withholds_and_touches_no_other_row(failure: Reply) -> None:
    def writes(conversation: Conversation, rng: Rng) -> Any:
        return failure if prompt_of(conversation).endswith("bad") else shouted(conversation, rng)

    inner = costing(lambda c, rng: "re: " + prompt_of(c))
    good, bad, last = ask(behind(costing(writes), inner), "one", "bad", "two")
    assert (good.text, last.text) == ("re: ONE", "re: TWO")
    assert bad.error == f"defense:paraphrase:{failure.error or 'empty'}"
    assert bad.text != failure.text and bad.defense_usage.flops == 10
    assert [prompt_of(c) for c in inner.calls] == ["ONE", "TWO"]


def test_a_paraphrase_depends_on_its_own_stream_alone() -> None:
    def random_word(conversation: Conversation, rng: Rng) -> str:
        return str(rng.python().random())

    many = ask(behind(costing(random_word)), "a", "b", "c")
    assert [ask(behind(costing(random_word)), p)[0].text for p in "abc"] == [r.text for r in many]
    assert ask(behind(costing(random_word)), "a", seed=1)[0].text != many[0].text


def test_a_paraphrase_that_was_cut_says_so() -> None:
    [reply] = ask(behind(costing(Reply("half", finish_reason="length"))), "a")
    assert reply.raw["defense"][0]["cut"] is True
