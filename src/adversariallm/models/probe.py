"""Asks an endpoint a few short questions to see what it honors, beside what its options claim.

A server may take an option and ignore it, which no error shows. Nothing here changes the options;
a handful of small requests is sent and paid for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.models.remote import RemoteModel

RNG = Rng.root(0).child("probe")
WORDS = Conversation.user("Write one random word after another, each a different one.")
NUMBER = Conversation.user("Say hello.")
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": [7, 8, 9]}},
    "required": ["number"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Observed:
    """One ability.

    Attributes:
        ability: what was tried.
        claimed: what the options of the endpoint say.
        seen: what the answers show; None where they show nothing.
        detail: in words.
    """

    ability: str
    claimed: bool
    seen: bool | None
    detail: str

    @property
    def agrees(self) -> bool:
        """Whether nothing speaks against the claim."""
        return self.seen is None or self.seen == self.claimed


def probe(model: RemoteModel) -> list[Observed]:
    """What the endpoint honors; a single row if it does not answer at all.

    Args:
        model: without a reply cache, so that the server is really asked.
    """
    first = _say(model, WORDS, GenerationConfig(max_new_tokens=8))
    if first.error is not None:
        reason = str(first.raw.get("error", first.error))
        return [Observed("answers", True, False, reason)]
    answers = Observed("answers", True, True, str(first.raw.get("served_model", model.name)))
    return [answers, _usage(first), *_tried(model)]


def _say(
    model: RemoteModel,
    talk: Conversation,
    options: GenerationConfig,
    stream: int = 0,
    schema: dict[str, object] | None = None,
) -> Reply:
    (reply,) = model.generate([talk], options, [RNG.child(stream)], json_schema=schema)
    return reply


def _usage(reply: Reply) -> Observed:
    used = reply.usage
    counted = used.tokens_processed > 0 and used.tokens_generated > 0
    detail = f"{used.tokens_processed} tokens in, {used.tokens_generated} out"
    return Observed("usage", True, counted, detail)


def _tried(model: RemoteModel) -> Iterator[Observed]:
    """Limits, sampling, seeds, stop strings and schemas, as far as they may be asked for."""
    able = model.backend.capabilities
    short = _say(model, WORDS, GenerationConfig(max_new_tokens=2))
    long = short.usage.tokens_generated
    yield Observed("max_new_tokens", True, long <= 2 if long else None, f"{long} tokens for 2")
    if able.temperature:
        hot = GenerationConfig(max_new_tokens=12, temperature=1.0)
        texts = [_say(model, WORDS, hot, k).text for k in (1, 1, 2, 3)]
        varied = len({texts[0], *texts[2:]}) > 1
        yield Observed("temperature", True, varied, "answers differ" if varied else "all equal")
        equal = texts[0] == texts[1]
        if varied:
            yield Observed("seed", able.seed, equal, "repeated" if equal else "not repeated")
    if able.stop:
        cut = _say(model, WORDS, GenerationConfig(max_new_tokens=8, stop=(" ",))).text
        yield Observed("stop", True, " " not in cut, f"{len(cut)} characters before a blank")
    if able.schema_mode == "strict":
        held = _say(model, NUMBER, GenerationConfig(max_new_tokens=32), schema=SCHEMA)
        yield Observed("schema", True, _fits(held.text), held.text[:40])


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("number") in (7, 8, 9)
