"""Cuts the ids of a rendered conversation into named spans and places attack slots in it.

It decides where things stand; whether other ids at a slot can be produced by text is
`reachability`'s question.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from adversariallm.core.errors import ConfigError
from adversariallm.core.types import Conversation, Merge, Segments, Span

Where = Literal["suffix", "prefix", "both", "turn"]
Join = Literal["none", "space"]
JOINS: dict[str, str] = {"none": "", "space": " "}


@dataclass(frozen=True)
class Slot:
    """What an attack may change, as text.

    Attributes:
        where: after the message, before it, both, or the whole turn (whose content it replaces).
        text: its initial text; empty is allowed.
        join: what stands between message and slot. After the message it belongs to the slot, so
            that a candidate may replace it; before the message it is fixed.
        turn: index of a user message; None is the last one.
        prefix: initial text of the part before the message for `both`; None takes `text`.
    """

    where: Where = "suffix"
    text: str = ""
    join: Join = "none"
    turn: int | None = None
    prefix: str | None = None


class CharSlot(NamedTuple):
    """Half-open characters of a slot in a turn's content, after `lead`, which candidates keep."""

    start: int
    end: int
    lead: str = ""


def place(conversation: Conversation, slot: Slot) -> tuple[Conversation, int, tuple[CharSlot, ...]]:
    """The conversation with the slot's text in it, its turn, and the places in that content."""
    turn = conversation.last_user if slot.turn is None else slot.turn
    if not -len(conversation) <= turn < len(conversation):
        raise ConfigError(f"slot turn {turn}: the conversation has {len(conversation)} messages")
    turn %= len(conversation)
    if conversation[turn].role != "user":
        raise ConfigError(
            f"slot turn {turn} is a message of the {conversation[turn].role}: expected a user turn"
        )
    if slot.where == "turn":
        return conversation.with_content(turn, slot.text), turn, (CharSlot(0, len(slot.text)),)
    join = JOINS[slot.join]
    content, slots = conversation[turn].content, []
    if slot.where in ("prefix", "both"):
        before = slot.text if slot.prefix is None or slot.where == "prefix" else slot.prefix
        content = before + join + content
        slots.append(CharSlot(0, len(before)))
    if slot.where in ("suffix", "both"):
        after = join + slot.text if slot.text else ""
        slots.append(CharSlot(len(content), len(content) + len(after)))
        content += after
    return conversation.with_content(turn, content), turn, tuple(slots)


class Cut(NamedTuple):
    """A slot's tokens, its characters, the fixed lead it took in, the tokens across its ends."""

    start: int
    end: int
    char_start: int
    char_end: int
    lead: str
    straddling: tuple[int, ...]


def cut_slot(text: str, offsets: Sequence[tuple[int, int]], start: int, end: int) -> Cut:
    """Token range of the characters `[start, end)`.

    A token across the left end belongs to the slot if only white space of it stands outside (the
    lead, which candidates keep), else to what is before; a token across the right end belongs to
    what follows. The character range shrinks to what the slot's own tokens cover.
    """
    starts = [s for s, _ in offsets]
    ends = [0]
    for _, e in offsets:
        ends.append(max(ends[-1], e))  # ends[k]: furthest character covered by the first k tokens
    first, last = bisect_left(starts, start), bisect_left(starts, end)
    straddling, lead = [], ""
    if end > start:
        if ends[first] > start:
            outside = text[starts[first - 1] : start]
            straddling.append(first - 1)
            if outside.isspace() and _is_boundary(starts, ends, first - 1):
                first, lead = first - 1, outside
            else:
                while not _is_boundary(starts, ends, first):
                    first += 1
                start = ends[first]
    if ends[last] > end:
        straddling.append(last - 1)
        last -= 1
        while not _is_boundary(starts, ends, last):
            last -= 1
        end = starts[last]
    last = max(first, last)
    if end <= start:
        first, start, end, lead = last, end, end, ""
    return Cut(first, last, start, end, lead, tuple(dict.fromkeys(straddling)))


def _is_boundary(starts: Sequence[int], ends: Sequence[int], k: int) -> bool:
    """Whether no token before `k` covers a character that a token from `k` on covers."""
    return k == len(starts) or ends[k] <= starts[k]


def label_spans(
    offsets: Sequence[tuple[int, int]], prompts: Sequence[Span], slots: Sequence[Cut], stop: int
) -> tuple[Span, ...]:
    """Contiguous named spans over the first `stop` tokens.

    Args:
        offsets: character range of each token.
        prompts: character spans of the messages' contents.
        slots: the slots, in order; a token of theirs is `slot`.
        stop: number of input tokens.
    """
    after = slots[-1].end if slots else None
    names: list[str] = []
    for k, (s, e) in enumerate(offsets[:stop]):
        inside = any(p.start <= s and e <= p.end and s < p.end for p in prompts)
        names.append("prompt" if inside else "template")
        if after is not None and k >= after:
            names[-1] = "post"
    if after is None:
        tail = max((k for k, n in enumerate(names) if n == "prompt"), default=-1)
        names[tail + 1 :] = ["post"] * (stop - tail - 1)
    spans: list[Span] = []
    for k, name in enumerate(names):
        if any(c.start <= k < c.end for c in slots):
            continue
        if spans and spans[-1].name == name and spans[-1].end == k:
            spans[-1] = Span(name, spans[-1].start, k + 1)
        else:
            spans.append(Span(name, k, k + 1))
    spans += [Span("slot", c.start, c.end) for c in slots]
    return tuple(sorted(spans, key=lambda s: (s.start, s.end)))


def merges_at(
    text: str, offsets: Sequence[tuple[int, int]], edges: Sequence[tuple[int, str, str]]
) -> tuple[Merge, ...]:
    """Tokens that straddle a character edge `(position, name on the left, name on the right)`."""
    found = []
    for at, left, right in edges:
        for k, (s, e) in enumerate(offsets):
            if s < at < e:
                found.append(Merge(k, left, right, text[s:at], text[at:e]))
    return tuple(found)


def slots_of(segments: Segments) -> tuple[int, tuple[CharSlot, ...]]:
    """The turn that holds the slots and their character ranges in its content."""
    where = segments.note.get("slots")
    if where is None:
        raise ConfigError(
            "these segments have no slot; make them with `segments(..., slot=Slot())`"
        )
    return where["turn"], tuple(CharSlot(s["start"], s["end"], s["lead"]) for s in where["chars"])


def split_slots(segments: Segments, slot_ids: Sequence[int]) -> list[Sequence[int]]:
    """Slot ids by slot."""
    spans = segments.named("slot")
    if len(spans) == 1:
        return [slot_ids]
    out, at = [], 0
    for s in spans:
        out.append(slot_ids[at : at + len(s)])
        at += len(s)
    return out
