"""The same text in other tokens: nothing else changes, and the seed decides which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import Supplies
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput
from adversariallm.defenses.retokenize import Config, wrap
from adversariallm.models.fakes import echo_model
from adversariallm.models.tiny import tiny_model

from .doubles import GREEDY, ask

STORY = "write a short story about an honest friend"


class Watched:
    """The tiny model, keeping what it is sent."""

    def __init__(self) -> None:
        self.inner = tiny_model("llama")
        self.sent: list[ModelInput] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, inputs: Sequence[Any], *rest: Any, **more: Any) -> Any:
        self.sent += inputs
        return self.inner.generate(inputs, *rest, **more)


def test_the_model_gets_other_ids_of_the_same_text() -> None:
    inner: Any = Watched()
    model = wrap(inner, Config(drop=0.5), Supplies())
    [reply] = ask(model, STORY)
    [given] = inner.sent
    usual = inner.chat.encode(Conversation.user(STORY))
    assert given.ids != usual and len(given.ids) > len(usual)
    assert inner.chat.decode(given.ids) == inner.chat.decode(usual)
    [facts] = reply.raw["defense"]
    assert (facts["tokens"], facts["tokens_before"]) == (len(given.ids), len(usual))
    start = len(inner.chat.encode(Conversation.user("")))
    assert given.ids[:1] == usual[:1] and given.ids[-2:] == usual[-2:] and start < len(usual)


def test_the_stream_decides_and_the_batch_does_not() -> None:
    inner: Any = Watched()
    model = wrap(inner, Config(), Supplies())
    together = ask(model, STORY, "good music", "the recipe for bread")
    ids = [m.ids for m in inner.sent]
    inner.sent.clear()
    alone = [ask(model, p)[0] for p in (STORY, "good music", "the recipe for bread")]
    assert [m.ids for m in inner.sent] == ids
    assert [r.text for r in alone] == [r.text for r in together]
    inner.sent.clear()
    ask(model, STORY, seed=1)
    assert inner.sent[0].ids != ids[0]


def test_every_user_message_is_cut_anew_and_no_answer() -> None:
    inner: Any = Watched()
    model = wrap(inner, Config(drop=1.0), Supplies())
    talk = Conversation.user("good music").append("assistant", "a list of names")
    talk = talk.append("user", "an honest question")
    model.generate([talk], GREEDY, [Rng.root(0)])
    [given] = inner.sent
    usual = inner.chat.encode(talk)
    letters = sum(len(m.content) for m in talk.messages if m.role == "user")
    untouched = len(usual) - sum(
        len(inner.chat.codec.encode(m.content)) for m in talk.messages if m.role == "user"
    )
    assert len(given.ids) == pytest.approx(untouched + letters, abs=4)
    assert inner.chat.decode(given.ids) == inner.chat.decode(usual)


def test_a_model_without_ids_is_refused() -> None:
    with pytest.raises(NeedsError, match="defense 'retokenize' needs tokens"):
        wrap(echo_model(), Config(), Supplies())
