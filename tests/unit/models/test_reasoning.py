"""A reasoning trace and the answer after it have limits of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference.requests import Generation, Request
from adversariallm.models.local import LocalModel
from adversariallm.models.reasoning import generate_in_two
from adversariallm.models.tiny import tiny_model, tiny_parts
from adversariallm.tokenization import ChatTokenizer
from adversariallm.tokenization.thinking import TAGS

THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{# <think> </think> #}"
)


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer(tiny_parts("llama").tokenizer, THINKS)


@pytest.fixture(scope="module")
def arch() -> Any:
    return tiny_model("llama").engine.arch


class Script:
    """Says one text, token by token, obeying limits and stop strings as the engine does."""

    def __init__(self, chat: ChatTokenizer, text: str) -> None:
        self.chat, self.said = chat, chat.codec.encode(text)
        self.asked: list[Request] = []

    def __call__(self, requests: Any) -> list[Generation]:
        return [self._one(r) for r in requests]

    def _one(self, request: Request) -> Generation:
        self.asked.append(request)
        begun = len(request.ids or ()) - 3
        rest = self.said[begun:]
        for n in range(1, len(rest) + 1):
            text = self.chat.decode(rest[:n])
            hit = next((s for s in request.generation.stop if s in text), None)
            if hit:
                return Generation(tuple(rest[:n]), "stop_string", stop_string=hit)
            if n == request.generation.max_new_tokens:
                return Generation(tuple(rest[:n]), "length")
        return Generation(tuple(rest), "stop")


def said(chat: ChatTokenizer, arch: Any, text: str, trace: int, answer: int) -> Generation:
    options = GenerationConfig(max_new_tokens=answer, max_reasoning_tokens=trace)
    request = Request(ids=(5, 6, 7), generation=options, decode=chat.decode)
    (found,) = generate_in_two([request], chat, TAGS, arch, Script(chat, text))
    return found


def length(chat: ChatTokenizer, text: str) -> int:
    return len(chat.codec.encode(text))


TRACE, ANSWER = "<think>good music</think>", " the recipe for bread is long"


def test_both_parts_are_kept_and_counted_as_one(chat: ChatTokenizer, arch: Any) -> None:
    found = said(chat, arch, TRACE + ANSWER, 100, 100)
    assert chat.decode(found.ids) == TRACE + ANSWER
    assert found.finish_reason == "stop"
    assert found.usage == arch.generation(3, len(found.ids))
    reasoning, answer, finished = chat.split_reply((5, 6, 7), found.ids)
    assert (reasoning, answer, finished) == ("good music", ANSWER, True)


def test_the_answer_has_its_own_limit(chat: ChatTokenizer, arch: Any) -> None:
    found = said(chat, arch, TRACE + ANSWER, 100, 2)
    assert len(found.ids) == length(chat, TRACE) + 2
    assert found.finish_reason == "length"


def test_a_trace_at_its_limit_is_unfinished_and_has_no_answer(
    chat: ChatTokenizer, arch: Any
) -> None:
    found = said(chat, arch, TRACE + ANSWER, length(chat, "<think>good"), 100)
    reasoning, answer, finished = chat.split_reply((5, 6, 7), found.ids)
    assert (answer, finished) == ("", False)
    assert reasoning is not None and "good" in reasoning


@pytest.mark.parametrize("trace", [1, 3, 100])
def test_without_a_trace_only_the_answers_limit_holds(
    chat: ChatTokenizer, arch: Any, trace: int
) -> None:
    found = said(chat, arch, ANSWER, trace, 4)
    assert chat.decode(found.ids) == chat.decode(chat.codec.encode(ANSWER)[:4])
    assert found.finish_reason == "length"


def test_a_real_model_obeys_both_limits_and_stays_batch_invariant() -> None:
    parts = tiny_parts("llama")
    model = LocalModel.from_parts(parts.model, ChatTokenizer(parts.tokenizer, THINKS))
    from adversariallm.core.types import Conversation

    options = GenerationConfig(max_new_tokens=5, max_reasoning_tokens=3, temperature=1.0)
    talks = [Conversation.user(t) for t in ("good music", "a cat", "the river")]
    streams = [Rng.root(k) for k in range(3)]
    together = model.generate(talks, options, streams)
    alone = [model.generate([t], options, [r])[0] for t, r in zip(talks, streams, strict=True)]
    plain = [replace(r, executed=0) for r in together]
    assert plain == [replace(r, executed=0) for r in alone]
    assert all(len(r.ids or ()) <= 8 for r in together)
