"""A copy fit to publish: answers to harmful requests become their length and hash.

An answer also stands in later steps: as an assistant's turn that a conversation attack sends again,
as ids of such an input, and quoted in the notes of attacks that read it. Scores, costs and
configuration stay, so every number can be computed again; the hash lets an owner of the original
show that the two belong together.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Redact = Literal["answers", "all"]
_CODE = re.compile(r"[A-Za-z0-9_./:@+-]{0,80}")  # a name, a path or a hash; all else is free text
_FOREIGN = ("table6", "harmbench", "jailbreakbench")  # fields of imported files, whatever they hold


def redacted(
    documents: Iterable[Mapping[str, Any]], what: Redact = "answers"
) -> list[dict[str, Any]]:
    """Documents without harmful text.

    Args:
        documents: joined run documents.
        what: `answers` hides what was said to harmful requests, also where an attack sent it
            again or quoted it in its notes; `all` also hides the inputs that attacks made.
    """
    return [{**d, "runs": [_run(r, what) for r in d["runs"]]} for d in documents]


def _run(run: Mapping[str, Any], what: Redact) -> dict[str, Any]:
    if not run["behavior"].get("harmful", True):
        return dict(run)
    extra = run["behavior"].get("extra", {})
    foreign = {k: _marked(v) for k, v in extra.items() if k in _FOREIGN}
    behavior = {**run["behavior"], **({"extra": {**extra, **foreign}} if foreign else {})}
    return {**run, "behavior": behavior, "steps": [_step(s, what) for s in run["steps"]]}


def _step(step: Mapping[str, Any], what: Redact) -> dict[str, Any]:
    sent = step["model_input"]
    hidden = [m["role"] == "assistant" or what == "all" for m in sent or ()]
    return {
        **step,
        "model_completions": [_mark(t) for t in step["model_completions"]],
        "completions": [_completion(c) for c in step["completions"]],
        "scores": {j: {k: _verdicts(v) for k, v in t.items()} for j, t in step["scores"].items()},
        "model_input": sent
        and [
            {**m, "content": _mark(m["content"])} if hide else m
            for m, hide in zip(sent, hidden, strict=True)
        ],
        "model_input_tokens": None if what == "all" or any(hidden) else step["model_input_tokens"],
        "prefill": _mark(step["prefill"]) if step["prefill"] and what == "all" else step["prefill"],
        "note": _numbers(step["note"]) if what == "all" else _marked(step["note"]),
    }


def _completion(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **facts,
        "ids": None,
        "log_probs": None,
        "reasoning": facts["reasoning"] and _mark(facts["reasoning"]),
        "undefended": facts.get("undefended") and _mark(facts["undefended"]),
        "raw": {},
    }


def _numbers(note: Mapping[str, Any]) -> dict[str, Any]:
    """Its own numbers and verdicts; a list may be the ids of an input."""
    return {k: v for k, v in note.items() if isinstance(v, (bool, int, float))}


def _marked(value: Any) -> Any:
    """The value with its free texts marked; keys, numbers, names and hashes stay."""
    if isinstance(value, Mapping):
        return {k: _marked(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(v) for v in value]
    return _mark(value) if isinstance(value, str) and not _CODE.fullmatch(value) else value


def _verdicts(values: list[Any]) -> list[Any]:
    """Numbers and short codes stay; a judge's raw text may quote the answer."""
    return [_mark(v) if isinstance(v, str) and len(v) > 40 else v for v in values]


def _mark(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"[redacted: {len(text)} characters, sha256 {digest}]"
