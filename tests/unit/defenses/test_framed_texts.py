"""Reminders and demonstrations: what the model reads, and what still passes."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.protocols import Needs, Supplies
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation
from adversariallm.defenses import in_context, self_reminder
from adversariallm.models.fakes import echo_model
from adversariallm.models.tiny import tiny_model
from adversariallm.tokenization import Slot

from .doubles import GREEDY, ask


def read_by_the_model(module: Any, conversation: Conversation, **options: Any) -> list[Any]:
    inner = echo_model()
    model = module.wrap(inner, module.Config(**options), Supplies())
    model.generate([conversation], GREEDY, [Rng.root(0)])
    [talk] = inner.calls
    return talk.to_dicts()


@pytest.mark.parametrize(
    ("place", "content"), [("around", "A|q|Z"), ("before", "A|q"), ("after", "q|Z")]
)
def test_a_reminder_stands_around_the_last_message(place: str, content: str) -> None:
    talk = Conversation.user("first").append("assistant", "hm").append("user", "q")
    read = read_by_the_model(self_reminder, talk, place=place, before="A|", after="|Z")
    assert [m["content"] for m in read] == ["first", "hm", content]


def test_a_reminder_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves no reminder"):
        self_reminder.Config(place="before", before="")


def test_demonstrations_come_first_after_the_system_prompt() -> None:
    talk = Conversation.user("q", system="careful")
    read = read_by_the_model(in_context, talk, shots=2)
    assert [m["role"] for m in read] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert read[0]["content"] == "careful" and read[-1]["content"] == "q"
    assert read[1]["content"] == in_context.DEMONSTRATIONS[0][0]
    own = read_by_the_model(in_context, talk, shots=1, demonstrations=[("a", "no")])
    assert [m["content"] for m in own] == ["careful", "a", "no", "q"]


def test_more_demonstrations_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="shots=9, but 4 demonstrations"):
        in_context.Config(shots=9)


@pytest.mark.parametrize("module", [self_reminder, in_context])
def test_gradients_pass_and_the_slot_is_the_attackers(module: Any) -> None:
    inner = tiny_model("llama")
    model = module.wrap(inner, module.Config(), Supplies())
    assert model.gives == Needs.white_box()
    segments = model.chat.segments(
        Conversation.user("write a short story"), Slot("suffix", " ! ! !"), target="Sure"
    )
    assert inner.chat.decode(segments.slot_ids) == " ! ! !"
    grad = model.gradient(segments.input_ids, segments.slot_positions, segments.target_ids)
    assert grad.finite and float(grad.slot.norm()) > 0
    [reply] = ask(model, "write a short story")
    assert reply.undefended is None and reply.error is None
