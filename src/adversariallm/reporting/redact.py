"""A copy fit to publish: answers to harmful requests become their length and hash.

Scores, costs and configuration stay, so every number can be computed again; the hash lets an owner
of the original show that the two belong together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Redact = Literal["answers", "all"]


def redacted(
    documents: Iterable[Mapping[str, Any]], what: Redact = "answers"
) -> list[dict[str, Any]]:
    """Documents without harmful text.

    Args:
        documents: joined run documents.
        what: `answers` hides what was said to harmful requests; `all` also hides the inputs that
            attacks made.
    """
    return [{**d, "runs": [_run(r, what) for r in d["runs"]]} for d in documents]


def _run(run: Mapping[str, Any], what: Redact) -> dict[str, Any]:
    if not run["behavior"].get("harmful", True):
        return dict(run)
    return {**run, "steps": [_step(s, what) for s in run["steps"]]}


def _step(step: Mapping[str, Any], what: Redact) -> dict[str, Any]:
    out = {
        **step,
        "model_completions": [_mark(t) for t in step["model_completions"]],
        "completions": [
            {
                **c,
                "ids": None,
                "log_probs": None,
                "reasoning": c["reasoning"] and _mark(c["reasoning"]),
                "undefended": c.get("undefended") and _mark(c["undefended"]),
                "raw": {},
            }
            for c in step["completions"]
        ],
        "scores": {j: {k: _verdicts(v) for k, v in t.items()} for j, t in step["scores"].items()},
    }
    if what == "all":
        sent = step["model_input"]
        out |= {
            "model_input": sent and [{**m, "content": _mark(m["content"])} for m in sent],
            "model_input_tokens": None,
            "prefill": step["prefill"] and _mark(step["prefill"]),
            "note": {},
        }
    return out


def _verdicts(values: list[Any]) -> list[Any]:
    """Numbers and short codes stay; a judge's raw text may quote the answer."""
    return [_mark(v) if isinstance(v, str) and len(v) > 40 else v for v in values]


def _mark(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"[redacted: {len(text)} characters, sha256 {digest}]"
