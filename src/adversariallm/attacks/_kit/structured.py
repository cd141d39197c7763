"""Structured replies of helper models: one ladder of asking, reading and asking again.

What no model said never comes out of here: a reply that cannot be read ends in a typed failure, and
the bad reply is never shown to the model again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import ChatModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply

T = TypeVar("T")

REFUSALS_BEFORE_FAILURE = 1  # a helper that declines is asked once more
UNENFORCED = ("minLength", "maxLength", "minItems", "maxItems", "title", "default", "description")
SMALL_RANGE = 32


class UnreadableError(ValueError):
    """A reply that does not hold what was asked for; the text says why."""


class Form(BaseModel):
    """A JSON object that a helper model fills in.

    Field names may come in camelCase, further keys are ignored, types are never converted.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    @classmethod
    def read(cls, text: str) -> Self:
        """The last object in the text that is such a form.

        Tried in order: the whole text, fenced blocks, every balanced object in the text.

        Raises:
            UnreadableError: there is none.
        """
        reason = "no JSON object in the reply"
        for values in _readings(text):
            for value in reversed(values):
                try:
                    return cls.model_validate(_snake(value))
                except ValidationError as error:
                    first = error.errors()[0]
                    where = ".".join(str(part) for part in first["loc"])
                    reason = f"{where}: {first['msg']}"
        raise UnreadableError(reason)

    @classmethod
    def wire_schema(cls) -> dict[str, Any]:
        """The JSON schema to enforce, within what vendors accept; all fields are required."""
        schema = cls.model_json_schema()
        found = _closed(schema)
        return found if isinstance(found, dict) else {}


def _readings(text: str) -> Iterator[list[Mapping[str, Any]]]:
    """The objects found by each rung of the ladder."""
    whole = _loads(text)
    if isinstance(whole, Mapping):
        yield [whole]
        return
    fenced = [_loads(block) for block in re.findall(r"```\w*\s*\n(.*?)```", text, re.DOTALL)]
    yield [value for value in fenced if isinstance(value, Mapping)]
    if whole is None:  # a list or a number as the root is no answer, whatever it holds
        yield list(_balanced(text))


def _balanced(text: str) -> Iterator[Mapping[str, Any]]:
    """Every outermost object in the text, braces inside strings not counted."""
    decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant)
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)


def _loads(text: str) -> Any:
    """The JSON value of a text, None where it is none; line breaks inside strings survive."""
    try:
        return json.loads(text, strict=False, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _snake(value: Any) -> Any:
    """The same value with keys in snake_case."""
    if isinstance(value, Mapping):
        rows = value.items()
        return {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", k).lower(): _snake(v) for k, v in rows}
    return [_snake(v) for v in value] if isinstance(value, list) else value


def _closed(schema: Any) -> Any:
    """The schema without keywords that vendors refuse, closed objects, small ranges spelled out."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema:
        named = {name: _closed(value) for name, value in schema["properties"].items()}
        kept = {k: _closed(v) for k, v in schema.items() if k not in ("properties", *UNENFORCED)}
        return {**kept, "properties": named, "required": list(named), "additionalProperties": False}
    if schema.get("type") == "integer" and {"minimum", "maximum"} <= schema.keys():
        values = range(schema["minimum"], schema["maximum"] + 1)
        if len(values) <= SMALL_RANGE:
            return {"type": "integer", "enum": list(values)}
    return {k: _closed(v) for k, v in schema.items() if k not in UNENFORCED}


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What came of asking a helper model.

    Attributes:
        value: what was read; None after a failure.
        raw: text of the last reply.
        attempts: replies that were asked for.
        refusals: replies in which the helper declined or said nothing.
        failure: None, `unreadable`, `refused` or the error code of the last reply.
        reasons: why replies were not accepted.
        enforcement: how a remote helper was held to the schema, where it says so.
    """

    value: T | None
    raw: str
    attempts: int
    refusals: int = 0
    failure: str | None = None
    reasons: tuple[str, ...] = ()
    enforcement: str | None = None

    def note(self) -> dict[str, Any]:
        """JSON facts worth storing with the step; empty ones are left out."""
        facts = {
            "raw": self.raw,
            "attempts": self.attempts,
            "refusals": self.refusals,
            "failure": self.failure,
            "rejected": list(self.reasons),
            "enforcement": self.enforcement,
        }
        return {name: value for name, value in facts.items() if value}


def ask(
    model: ChatModel,
    talk: Conversation,
    read: Callable[[str], T],
    generation: GenerationConfig,
    rng: Rng,
    *,
    attempts: int,
    schema: Mapping[str, Any] | None = None,
    opening: str = "",
) -> Answer[T]:
    """Ask until a reply can be read.

    Every attempt sends the same conversation with a random stream of its own. A reply in which the
    helper declines is no unreadable one: it is asked for once more, then the answer is a failure.

    Args:
        model: the helper.
        talk: what to send.
        read: gives the value of a text or raises `UnreadableError`.
        generation: decoding options.
        rng: the stream of this question.
        attempts: most replies to ask for.
        schema: JSON schema that the helper's decoding is held to, where it can be.
        opening: what the helper's answer begins with; `read` gets it in front of the reply.
    """
    asked: Conversation | ModelInput = talk
    if opening:
        asked = ModelInput(conversation=talk, prefill=opening)
    refusals, reasons = 0, list[str]()
    failure, reply, attempt = "unreadable", Reply(""), 0
    value: T | None = None
    while attempt < attempts and refusals <= REFUSALS_BEFORE_FAILURE:
        attempt += 1
        stream = rng.child("attempt", attempt)
        (reply,) = model.generate([asked], generation, [stream], json_schema=schema)
        if _declined(reply):
            refusals, failure = refusals + 1, "refused"
            continue
        if reply.error is not None:
            failure = reply.error
            break
        try:
            value, failure = read(opening + reply.text), ""
            break
        except UnreadableError as error:
            failure = "unreadable"
            reasons.append(str(error))
    return Answer(
        value,
        reply.text,
        attempt,
        refusals,
        failure or None,
        tuple(reasons),
        reply.raw.get("enforcement"),
    )


def _declined(reply: Reply) -> bool:
    """Whether the provider or the helper itself declined, or nothing came."""
    if reply.error is not None:
        return reply.error == "content_filter"
    return "refusal" in reply.raw or not reply.text.strip()
