"""Chat models that answer by rule: a script and an echo, for tests, tutorials and dry runs.

They have no tokenizer and no weights; the white-box fakes are `tiny` and `planted`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply

Script = (
    Sequence[str | Reply] | Mapping[str, str | Reply] | Callable[[Conversation, Rng], str | Reply]
)


class ScriptedModel:
    """Answers from a script, without state, so that no order or concurrency changes a reply.

    The script is one of
        a sequence: the answer to turn t is entry t (the last one once they run out);
        a mapping: the answer to a last user message, key "*" for all others;
        a function of the conversation and the random stream.

    `calls` keeps every conversation that was sent, in order of arrival.
    """

    gives = Needs.TEXT

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        """Take the script; `name` is part of the identity of one given as a function."""
        if not callable(script) and len(script) == 0:
            raise ValueError("the script is empty: expected at least one answer")
        self.name = name
        self.calls: list[Conversation] = []
        self._script = script
        self._lock = threading.Lock()

    def identity(self) -> Mapping[str, Any]:
        """The script's content; for a function only its name."""
        if callable(self._script):
            return {"fake": "scripted", "name": self.name}
        if isinstance(self._script, Mapping):
            rows: Any = {key: _text(value) for key, value in self._script.items()}
        else:
            rows = [_text(value) for value in self._script]
        return {"fake": "scripted", "script": stable_hash(rows)}

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One scripted reply per input, cut at the first stop string."""
        replies = []
        for item, rng in zip(inputs, rngs, strict=True):
            conversation = item.conversation if isinstance(item, ModelInput) else item
            if conversation is None:
                raise ValueError("a scripted model reads conversations, not embeddings")
            with self._lock:
                self.calls.append(conversation)
            answer = self._answer(conversation, rng)
            replies.append(answer if isinstance(answer, Reply) else _cut(answer, generation.stop))
        return replies

    def _answer(self, conversation: Conversation, rng: Rng) -> str | Reply:
        if callable(self._script):
            return self._script(conversation, rng)
        if isinstance(self._script, Mapping):
            last = conversation[conversation.last_user].content
            if last in self._script:
                return self._script[last]
            if "*" in self._script:
                return self._script["*"]
            raise ValueError(f"the script has no answer to {last[:80]!r} and no '*' entry")
        turn = sum(message.role == "assistant" for message in conversation)
        return self._script[min(turn, len(self._script) - 1)]


def echo_model(name: str = "echo") -> ScriptedModel:
    """A model that repeats the last user message."""

    def repeat(conversation: Conversation, rng: Rng) -> str:
        return conversation[conversation.last_user].content

    return ScriptedModel(repeat, name=name)


def _text(value: str | Reply) -> str:
    return value.text if isinstance(value, Reply) else value


def _cut(text: str, stops: Sequence[str]) -> Reply:
    """The reply up to the earliest stop string."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return Reply(text)
    return Reply(text[: min(ends)], finish_reason="stop_string")
