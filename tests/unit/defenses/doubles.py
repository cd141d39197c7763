"""What tests of defenses share: a judge that reads a word, and models that tell what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adversariallm.core.budget import Usage
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Verdict
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.models.fakes import ScriptedModel

GREEDY = GenerationConfig(max_new_tokens=8)


class WordJudge:
    """Scores 1 where the last message holds the word, None where it holds a question mark."""

    threshold = 0.5

    def __init__(self, word: str) -> None:
        self.word = word
        self.read: list[Conversation] = []

    def verdicts(self, conversations: Sequence[Conversation]) -> list[Verdict]:
        self.read += conversations
        rows = [c[len(c) - 1].content for c in conversations]
        return [
            Verdict(None, "parse", Usage(flops=7))
            if "?" in row
            else Verdict(float(self.word in row), usage=Usage(flops=7))
            for row in rows
        ]


def costing(answer: Any) -> ScriptedModel:
    """A model whose every answer costs a query and ten operations."""

    def reply(conversation: Conversation, rng: Rng) -> Reply:
        found = answer(conversation, rng) if callable(answer) else answer
        text = found if isinstance(found, Reply) else Reply(str(found))
        return Reply(
            text.text,
            error=text.error,
            finish_reason=text.finish_reason,
            usage=Usage(queries=1, flops=10),
            executed=12,
        )

    return ScriptedModel(reply)


def prompt_of(conversation: Conversation) -> str:
    return conversation[conversation.last_user].content


def ask(model: Any, *prompts: str, seed: int = 0, system: str | None = None) -> list[Reply]:
    """Answers to single-turn questions, each with a stream of its own."""
    talks = [Conversation.user(p, system=system) for p in prompts]
    streams = [Rng.root(seed).child(p) for p in prompts]
    replies: list[Reply] = model.generate(talks, GREEDY, streams)
    return replies
