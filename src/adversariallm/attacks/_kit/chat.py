"""What attacks that talk share: decoding of helpers, filling of texts, ratings, status of answers.

It keeps no conversation and decides nothing; each attack's own loop does.
"""

from __future__ import annotations

import re
import string
from importlib.resources import files

import yaml
from pydantic import Field

from adversariallm.attacks._kit.structured import UnreadableError
from adversariallm.core.config import FrozenConfig
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Context
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, Message, Reply

SLOT = re.compile(r"\{\{\s*(\w+)\s*\}\}|\{(\w+)\}")
RATING = re.compile(r"\[\[\s*(\d+)\s*\]\]")
BLOCKED = ("content_filter", "empty")
FAILED = ("transport_error", "context_overflow")


class Decoding(FrozenConfig):
    """How a helper model answers; subclasses state an algorithm's defaults."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus mass kept")
    max_new_tokens: int = Field(512, ge=1, description="token limit of an answer")

    def generation(self) -> GenerationConfig:
        """As options of a model."""
        return GenerationConfig(**self.model_dump())


def fill(template: str, **slots: str | int) -> str:
    """The template with `{name}` and `{{ name }}` replaced, for the given names alone.

    What is put in is never read again, so braces in a request or an answer stay as they are.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return str(slots[name]) if name in slots else found[0]

    return SLOT.sub(value, template)


def fill_formatted(template: str, **slots: str | int) -> str:
    """As `fill`, for a template that may be written for Python's own formatting.

    Where all of its fields are among the slots, doubled braces stand for single ones; a template
    with other braces, e.g. of JSON examples, is filled like any.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        return fill(template, **slots)
    if any(name is not None and name not in slots for _, name, _, _ in parts):
        return fill(template, **slots)
    return "".join(
        literal + ("" if name is None else str(slots[name])) for literal, name, _, _ in parts
    )


def yaml_values(text: str) -> dict[str, str]:
    """The values of a flat YAML file as texts, for `fill`."""
    return {str(name): str(value) for name, value in yaml.safe_load(text).items()}


def own_text(name: str) -> str:
    """A text that we wrote: `texts/<name>.txt`."""
    place = files("adversariallm.attacks") / "texts" / f"{name}.txt"
    return place.read_text(encoding="utf-8").strip()


def objective(behavior: Behavior) -> str:
    """The request in words, after the text that it refers to."""
    return behavior.goal if not behavior.context else f"{behavior.context}\n\n{behavior.goal}"


def exchange(system: str, user: str) -> Conversation:
    """A system text and one question."""
    return Conversation.user(user, system=system)


def with_turns(start: tuple[Message, ...], turns: list[list[str]], question: str) -> Conversation:
    """Messages before the first turn, finished turns (question, answer) and a new question."""
    talk = list(start)
    for asked, answered in turns:
        talk += [Message("user", asked), Message("assistant", answered)]
    return Conversation((*talk, Message("user", question)))


def answer(ctx: Context, talk: Conversation, rng: Rng) -> Reply:
    """The answer of the model under attack, decoded as the scored completions are."""
    (reply,) = ctx.model.generate([talk], ctx.generation, [rng])
    return reply


def status(reply: Reply) -> str:
    """What kind of answer it is.

    One of ok, length, empty, refusal_field, content_filter, context_overflow, transport_error. A
    block by the provider is no text, and a failed call is no answer.
    """
    if reply.error is not None:
        known = {"content_filter": "content_filter", "context_length": "context_overflow"}
        return known.get(reply.error, "transport_error")
    if "refusal" in reply.raw:
        return "refusal_field"
    if not reply.text.strip():
        return "empty"
    return "length" if reply.finish_reason == "length" else "ok"


def defused(text: str) -> str:
    """The text without the brackets of a verdict, so that an answer cannot bring its own."""
    return text.replace("[[", "[ [").replace("]]", "] ]")


def read_rating(text: str, low: int = 1, high: int = 10) -> int:
    """The number in the last `[[n]]` of a verdict.

    Raises:
        UnreadableError: there is none, or it is out of range.
    """
    found = RATING.findall(text)
    if not found:
        raise UnreadableError("no [[rating]] in the reply")
    rating = int(found[-1])
    if not low <= rating <= high:
        raise UnreadableError(f"rating {rating}: expected {low} to {high}")
    return rating
