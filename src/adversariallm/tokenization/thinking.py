"""Switches a template's thinking mode and keeps a reasoning trace apart from the answer.

What marks a trace is read from the template and the vocabulary, not from a model's name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from adversariallm.core.errors import ConfigError

if TYPE_CHECKING:
    from adversariallm.tokenization.chat import ChatTokenizer

Thinking = str
"""`default`, `on`, `off`, or an effort (`low`, `medium`, `high`)."""

EFFORTS = ("low", "medium", "high")


def thinking_variables(thinking: Thinking, reads: frozenset[str]) -> dict[str, Any]:
    """The template variables that a thinking setting stands for.

    Args:
        thinking: the setting.
        reads: names of variables that the template looks up.
    """
    if thinking == "default":
        return {}
    switches = [n for n in ("enable_thinking", "thinking") if n in reads]
    if thinking in ("on", "off") and switches:
        return dict.fromkeys(switches, thinking == "on")
    if thinking in EFFORTS and "reasoning_effort" in reads:
        return {"reasoning_effort": thinking}
    valid = ["default", *(["on", "off"] if switches else [])]
    valid += EFFORTS if "reasoning_effort" in reads else ()
    raise ConfigError(f"thinking={thinking!r}: this chat template offers {', '.join(valid)}")


class Marks(NamedTuple):
    """Strings around a trace, and what opens an answer (empty where the end of the trace does)."""

    start: str
    end: str
    answer: str = ""


TAGS = Marks("<think>", "</think>")
CHANNELS = Marks("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>final<|message|>")


def reasoning_marks(chat: ChatTokenizer) -> Marks | None:
    """What marks a reasoning trace; None where the template knows none."""
    source = chat.template.source
    if "<|channel|>" in source and "analysis" in source:
        return CHANNELS
    return TAGS if TAGS.end in source else None


def split_reasoning(
    chat: ChatTokenizer, input_ids: Sequence[int], new_ids: Sequence[int]
) -> tuple[str | None, str, bool]:
    """Reasoning, answer, and whether the reasoning was finished."""
    marks = reasoning_marks(chat)
    if marks is None:
        return None, chat.decode_reply(input_ids, new_ids), True
    ids = list(new_ids)
    opened = marks.start in chat.codec.decode(list(input_ids)[-8:]).rpartition(marks.end)[2]
    end = _find(chat, ids, marks.end, input_ids)
    answer = _find(chat, ids, marks.answer, input_ids) if marks.answer else None
    start = _find(chat, ids, marks.start, input_ids)
    if start is None and not opened:
        cut = answer[1] if answer is not None else 0
        return None, chat.decode_reply([*input_ids, *ids[:cut]], ids[cut:]), True
    begin = 0 if opened and (start is None or (end and start[0] > end[0])) else start[1]  # type: ignore[index]
    stop = end if end is not None and end[0] >= begin else None
    trace = ids[begin : stop[0]] if stop else ids[begin:]
    reasoning = chat.decode_reply([*input_ids, *ids[:begin]], trace)
    if stop is None or (marks.answer and answer is None):
        return reasoning, "", stop is not None and not marks.answer
    cut = answer[1] if answer is not None else stop[1]
    return reasoning, chat.decode_reply([*input_ids, *ids[:cut]], ids[cut:]), True


def _find(
    chat: ChatTokenizer, ids: list[int], mark: str, input_ids: Sequence[int]
) -> tuple[int, int] | None:
    """Half-open id range of the first occurrence of a mark, found through the decoded text."""
    context = list(input_ids)[-8:]

    def seen(start: int, end: int) -> bool:
        text = chat.codec.decode_after([*context, *ids[:start]], ids[start:end])
        return text is not None and mark in text

    if not seen(0, len(ids)):
        return None
    end = 1 + bisect_left(range(1, len(ids) + 1), True, key=lambda n: seen(0, n))
    return next(start for start in range(end - 1, -1, -1) if seen(start, end)), end
