"""Rows: one conversation checked, copied and split into the parts that judges read.

A bad row becomes an error code, never an exception; the caller's objects are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Conversation", "Message", "Row", "RowContext", "build_row", "split_reasoning"]

Message = Mapping[str, Any]
Conversation = Sequence[Message]
RowContext = Mapping[str, Any]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_THINK = re.compile(r"\A\s*<think>(?P<reasoning>.*?)(?:</think>\s*(?P<answer>.*)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """One judgeable conversation.

    Attributes:
        index: position in the caller's list.
        messages: plain copies with ``role`` and ``content`` as text, in order.
        goal: the behavior: the caller's ``goal``, else the first user message.
        prompt: the last user message before the judged answer.
        response: text of the last message, without its reasoning unless asked for.
        reasoning: reasoning trace of the last message, or an empty string.
        context: context text of a contextual behavior, or None.
        target: affirmative answer prefix, or None.
        reference: answer key of a utility item, or None.
        category: category name, or None.
        extra: everything else that the caller's context held.
    """

    index: int
    messages: tuple[dict[str, str], ...]
    goal: str
    prompt: str
    response: str
    reasoning: str = ""
    context: str | None = None
    target: str | None = None
    reference: Any = None
    category: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def split_reasoning(text: str) -> tuple[str, str]:
    """Split a leading ``<think>`` block from an answer.

    Args:
        text: raw assistant text.

    Returns:
        ``(reasoning, answer)``; an unclosed block leaves an empty answer.
    """
    match = _THINK.match(text)
    if match is None:
        return "", text
    return match["reasoning"].strip(), match["answer"] or ""


def _plain_text(content: Any) -> str | None:
    """Return message content as text, or None when it is neither text nor text parts."""
    if isinstance(content, str):
        return _encodable(content)
    if not isinstance(content, Sequence):
        return None
    parts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            return None
        if not isinstance(part.get("text"), str):
            return None
        parts.append(part["text"])
    return _encodable("".join(parts))


def _encodable(text: str) -> str:
    """Return the text with lone surrogates replaced, which no tokenizer or server takes."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain_messages(conversation: Any) -> tuple[dict[str, str], ...] | None:
    """Copy a conversation with text contents, or return None when it is malformed."""
    if isinstance(conversation, str | bytes) or not isinstance(conversation, Sequence):
        return None
    messages = []
    for message in conversation:
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            return None
        text = _plain_text(message.get("content"))
        if text is None:
            return None
        messages.append({"role": str(message["role"]), "content": text})
    return tuple(messages)


def build_row(
    index: int,
    conversation: Any,
    context: RowContext | None,
    *,
    reasoning: Literal["answer", "both"] = "answer",
) -> Row | None:
    """Check one conversation and split it.

    Args:
        index: position in the caller's list.
        conversation: list of messages; the last one is the judged assistant answer.
        context: extra facts about the row, or None.
        reasoning: judge the answer alone, or the reasoning trace and the answer.

    Returns:
        The row, or None when the conversation has no user message, does not end with an
        assistant message, or is malformed.
    """
    messages = _plain_messages(conversation)
    if not messages or messages[-1]["role"] != "assistant":
        return None
    users = [m["content"] for m in messages[:-1] if m["role"] == "user"]
    if not users:
        return None
    thought, answer = split_reasoning(messages[-1]["content"])
    last = conversation[-1]
    thought = thought or str(last.get("reasoning") or last.get("reasoning_content") or "")
    response = f"{thought}\n\n{answer}" if reasoning == "both" and thought else answer
    facts = dict(context or {})
    goal = facts.pop("goal", None)
    return Row(
        index=index,
        messages=(*messages[:-1], {"role": "assistant", "content": response}),
        goal=_encodable(goal) if isinstance(goal, str) else users[0],
        prompt=users[-1],
        response=response,
        reasoning=thought,
        context=facts.pop("context", None),
        target=facts.pop("target", None),
        reference=facts.pop("reference", None),
        category=facts.pop("category", None),
        extra=facts,
    )
