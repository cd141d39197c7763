"""Tells which attack strings of any tool survive tokenization inside a whole conversation.

It reads files and judges strings and ids; whether they work on a model is not its question.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adversariallm.core.errors import AdversariaLLMError, DataError
from adversariallm.core.types import Conversation, Merge, Segments
from adversariallm.tokenization.chat import ChatTokenizer
from adversariallm.tokenization.reachability import MERGES_SHOWN, ReachabilityStats
from adversariallm.tokenization.segments import JOINS, Join, Slot

SUFFIX_KEYS = ("suffix", "adv_suffix", "adversarial_suffix", "control", "best_string")
IDS_KEYS = ("suffix_ids", "slot_ids", "adv_ids", "ids", "tokens")
PROMPT_KEYS = ("goal", "instruction", "behavior_text", "query")
Verdict = Literal["reachable", "isolated", "conversation", "error"]


@dataclass(frozen=True)
class AuditItem:
    """One string to judge: where it stands, its text, and its ids where the tool gives them."""

    label: str
    conversation: Conversation
    slot: Slot
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AuditResult:
    """Verdict on one item.

    Attributes:
        item: what was judged.
        verdict: `reachable`; or not, which the `isolated` check shows already or only the whole
            `conversation` shows; or `error`.
        merges: tokens at the ends of the slot that also cover text outside.
        detail: ids meant and ids found, or the error.
    """

    item: AuditItem
    verdict: Verdict
    merges: tuple[Merge, ...] = ()
    detail: str = ""


def read_items(path: Path, prompt: str, join: Join) -> list[AuditItem]:
    """Items of a file: plain lines (suffixes), JSON lines, or JSON (also JailbreakBench artifacts).

    Args:
        path: the file.
        prompt: user message for strings that come without one.
        join: what stands between message and suffix where the file does not say.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = _rows(_parse(text, str(path)))
        return [_item(r, f"{path.name}#{n}", prompt, join) for n, r in enumerate(rows)]
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r")]
    if path.suffix == ".jsonl":
        return [
            _item(_parse(line, f"{path}:{n}"), f"{path.name}:{n}", prompt, join)
            for n, line in lines
        ]
    return [_item(line.rstrip("\r"), f"{path.name}:{n}", prompt, join) for n, line in lines]


def audit(
    chat: ChatTokenizer, items: Iterable[AuditItem]
) -> tuple[list[AuditResult], ReachabilityStats]:
    """Verdicts and counts.

    An item is reachable if tokenizing its whole conversation gives its ids exactly at its place.
    Without ids in the file, the ids meant are those of its text on its own, as a tool that appends
    ids would use them.
    """
    results = [_judge(chat, item) for item in items]
    verdicts = Counter(r.verdict for r in results)
    late = [r for r in results if r.verdict == "conversation"]
    return results, ReachabilityStats(
        sampled=len(results) - verdicts["error"],
        kept=verdicts["reachable"],
        rejected_isolated=verdicts["isolated"],
        rejected_conversation=verdicts["conversation"],
        merged=dict(
            Counter(f"{m.left}|{m.right}" for r in late for m in r.merges[:1])
            + Counter("slot" for r in late if not r.merges)
        ),
        examples=tuple(m for r in late for m in r.merges)[:MERGES_SHOWN],
    )


def _judge(chat: ChatTokenizer, item: AuditItem) -> AuditResult:
    codec = chat.codec
    try:
        segments: Segments = chat.segments(item.conversation, item.slot)
        join = JOINS[item.slot.join] if item.slot.where == "suffix" else ""
        given = item.slot.text
        meant = item.ids or tuple(codec.encode(join + given))
        alone = tuple(codec.encode(codec.decode(meant)))
    except (AdversariaLLMError, OverflowError, TypeError) as e:
        return AuditResult(item, "error", detail=str(e))
    if segments.slot_ids == meant:
        return AuditResult(item, "reachable")
    merges = tuple(m for m in segments.merges if "slot" in (m.left, m.right))
    detail = f"meant {list(meant)}, found {list(segments.slot_ids)}"
    return AuditResult(item, "isolated" if alone != meant else "conversation", merges, detail)


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise DataError(f"{where} is not JSON: {e}") from e


def _rows(value: Any) -> list[Any]:
    """The list of strings or objects in a JSON value."""
    if isinstance(value, Mapping):
        for key in ("jailbreaks", "results", "data", "suffixes", "runs"):
            if isinstance(value.get(key), list):
                return list(value[key])
        if all(isinstance(v, list) for v in value.values()):
            return [row for rows in value.values() for row in rows]
        return [value]
    return list(value) if isinstance(value, list) else [value]


def _item(row: Any, label: str, prompt: str, join: Join) -> AuditItem:
    """One item from a suffix, a list of messages, or an object that holds one of these."""
    if isinstance(row, str):
        return AuditItem(label, Conversation.user(prompt), Slot(text=row, join=join))
    if isinstance(row, list):
        row = {"messages": row}
    if not isinstance(row, Mapping):
        raise DataError(f"{label}: {row!r} is neither a text, a list of messages nor an object")
    ids = _first(row, IDS_KEYS, list)
    ids = tuple(int(i) for i in ids) if ids else None
    suffix = _first(row, SUFFIX_KEYS, str)
    goal = _first(row, PROMPT_KEYS, str)
    messages = _first(row, ("messages", "conversation", "model_input"), list)
    if messages is not None:
        try:
            conversation = Conversation.from_dicts(messages)
        except (KeyError, TypeError, ValueError) as e:
            raise DataError(f"{label}: not a conversation: {e}") from e
    else:
        text = _first(row, ("prompt", "jailbreak_prompt", "text"), str)
        if text is None and goal is None and suffix is None:
            raise DataError(
                f"{label}: an object with {', '.join(map(str, row)) or 'no keys'}; expected one of"
                f" messages, prompt, {', '.join(SUFFIX_KEYS)}"
            )
        conversation = Conversation.user(text if text is not None else goal or prompt)
    return _locate(label, conversation, suffix, goal, ids, join)


def _locate(
    label: str,
    conversation: Conversation,
    suffix: str | None,
    goal: str | None,
    ids: tuple[int, ...] | None,
    join: Join,
) -> AuditItem:
    """The slot in the last user message: its suffix, what follows the goal, or all of it."""
    turn = conversation.last_user
    content = conversation[turn].content
    if suffix is None and goal and content.startswith(goal) and len(content) > len(goal):
        suffix = content[len(goal) :]
    if suffix is None:
        return AuditItem(label, conversation, Slot("turn", content, turn=turn), ids)
    if suffix and content.endswith(suffix):
        content = content[: -len(suffix)]
        blank: Join = "space" if content.endswith(" ") and not suffix.startswith(" ") else "none"
        content = content.removesuffix(JOINS[blank])
        conversation, join = conversation.with_content(turn, content), blank
    return AuditItem(label, conversation, Slot(text=suffix, join=join, turn=turn), ids)


def _first(row: Mapping[str, Any], keys: Iterable[str], kind: type) -> Any:
    """The first value of that type under one of these keys."""
    return next((row[k] for k in keys if isinstance(row.get(k), kind)), None)
