"""Scripted models answer by rule, whatever the order or number of requests."""

from __future__ import annotations

import pytest

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import ChatModel, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.models.fakes import ScriptedModel, echo_model

GENERATION = GenerationConfig()
RNG = Rng.root(0)


def ask(model: ScriptedModel, *questions: Conversation, stop: tuple[str, ...] = ()) -> list[str]:
    generation = GenerationConfig(stop=stop)
    return [r.text for r in model.generate(questions, generation, [RNG] * len(questions))]


def test_a_sequence_answers_by_turn_not_by_order_of_arrival() -> None:
    model = ScriptedModel(["first", "second"])
    one = Conversation.user("a")
    two = one.append("assistant", "first").append("user", "b")
    three = two.append("assistant", "second").append("user", "c")
    assert ask(model, two, one, three) == ["second", "first", "second"]
    assert model.calls == [two, one, three]


def test_a_mapping_answers_by_the_last_user_message() -> None:
    model = ScriptedModel({"a": "yes", "*": "no"})
    assert ask(model, Conversation.user("a"), Conversation.user("b")) == ["yes", "no"]
    with pytest.raises(ValueError, match="no answer to 'b'"):
        ask(ScriptedModel({"a": "yes"}), Conversation.user("b"))


def test_a_function_may_draw_from_its_stream() -> None:
    model = ScriptedModel(lambda conversation, rng: f"{rng.uniform():.6f}")
    replies = model.generate(
        [Conversation.user("a")] * 2, GENERATION, [RNG.child("x"), RNG.child("y")]
    )
    assert replies[0].text == f"{RNG.child('x').uniform():.6f}" != replies[1].text


def test_a_reply_may_be_a_failure() -> None:
    failed = Reply("", error="timeout", finish_reason="error")
    assert ScriptedModel([failed]).generate([Conversation.user("a")], GENERATION, [RNG]) == [failed]


def test_stop_strings_end_an_answer() -> None:
    model = ScriptedModel(["one. two. three"])
    assert ask(model, Conversation.user("a"), stop=("three", ". ")) == ["one"]


def test_the_echo_repeats_the_last_user_message() -> None:
    assert ask(echo_model(), Conversation.user("a", system="s")) == ["a"]


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        ScriptedModel([])


def test_identity_follows_the_script_alone() -> None:
    assert ScriptedModel(["a"]).identity() == ScriptedModel(["a"], name="other").identity()
    assert ScriptedModel(["a"]).identity() != ScriptedModel(["b"]).identity()


def test_it_keeps_the_protocol() -> None:
    model = echo_model()
    assert isinstance(model, ChatModel)
    assert model.gives == Needs.TEXT
