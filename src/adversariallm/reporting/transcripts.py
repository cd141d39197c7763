"""What the transcript browser shows: inputs, answers, scores, and which answers are hidden.

All text passes through `visible`; a report keeps a choice of steps per behavior and says how many
it left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adversariallm.evaluation.facts import UNDEFENDED, Document, judge_view
from adversariallm.reporting.text import visible, visible_line
from adversariallm.reporting.token_view import token_view

if TYPE_CHECKING:
    from adversariallm.tokenization import ChatTokenizer

MAX_STEPS = 6000
MOST_PER_BEHAVIOR, LEAST_PER_BEHAVIOR = 24, 3


def transcripts(
    documents: Sequence[Document],
    labels: Sequence[int],
    chats: Mapping[str, ChatTokenizer] | None = None,
) -> list[dict[str, Any]]:
    """One entry per evaluated behavior.

    Args:
        documents: joined run documents.
        labels: index of each document's setting in the report.
        chats: tokenizers by model name, for the token view.
    """
    behaviors = sum(len(d["runs"]) for d in documents)
    limit = max(LEAST_PER_BEHAVIOR, min(MOST_PER_BEHAVIOR, MAX_STEPS // max(1, behaviors)))
    entries = [
        _transcript(document, run, label, limit, (chats or {}).get(_model(document, run)))
        for document, label in zip(documents, labels, strict=True)
        for run in document["runs"]
    ]
    return sorted(entries, key=lambda e: (e["setting"], e["id"], e["seed"], e["run"]))


def _transcript(
    document: Document,
    run: Mapping[str, Any],
    setting: int,
    limit: int,
    chat: ChatTokenizer | None,
) -> dict[str, Any]:
    behavior, steps = run["behavior"], run["steps"]
    kept = chosen_steps(steps, behavior, limit)
    mark = _mark(steps, behavior)
    won = [s["step"] for s in steps if _hit(s, behavior)]
    return {
        "setting": setting,
        "run": document["run_id"],
        "status": visible_line(str(document.get("status", "done"))),
        "seed": document["config"].get("seed", 0),
        "id": visible_line(str(behavior["id"])),
        "goal": visible(str(behavior.get("goal", ""))),
        "category": visible_line(str(behavior.get("category") or "")),
        "harmful": bool(behavior.get("harmful", True)),
        "mark": mark,
        "short": f"at step {won[0]}" if won else mark or "no",
        "prompt": _messages(run["original_prompt"]),
        "total_steps": len(steps),
        "steps": [
            _step(steps[i], behavior)
            | ({"view": token_view(chat, steps[i], run["original_prompt"])} if chat else {})
            for i in kept
        ],
    }


def _model(document: Document, run: Mapping[str, Any]) -> str:
    models = document.get("resolved", {}).get("models") or [{}]
    return str(run.get("model") or models[0].get("name", ""))


def chosen_steps(
    steps: Sequence[Mapping[str, Any]], behavior: Mapping[str, Any], limit: int
) -> list[int]:
    """At most `limit` indices: first, last, first hit, lowest loss, then evenly spread ones."""
    if len(steps) <= limit:
        return list(range(len(steps)))
    keep = [0, len(steps) - 1]
    keep += [i for i, s in enumerate(steps) if _hit(s, behavior)][:1]
    losses = [(s["loss"], i) for i, s in enumerate(steps) if s["loss"] is not None]
    if losses:
        keep.append(min(losses)[1])
    even = np.linspace(0, len(steps) - 1, limit).round().astype(int).tolist()
    chosen = list(dict.fromkeys(keep))[:limit]
    chosen += [i for i in even if i not in chosen][: limit - len(chosen)]
    return sorted(chosen)


def _hit(step: Mapping[str, Any], behavior: Mapping[str, Any]) -> bool:
    return any(_scored_harmful(step, k, behavior) for k in range(len(step["model_completions"])))


def _scores(step: Mapping[str, Any], k: int) -> dict[str, float | None]:
    """Judge -> the score of completion k, None where unscored."""
    found: dict[str, float | None] = {}
    for judge, table in step["scores"].items():
        if judge.endswith(UNDEFENDED):
            continue
        column = table.get(judge_view(judge).score_key, ())
        value = column[k] if k < len(column) else None
        found[judge] = None if value is None or not math.isfinite(value) else float(value)
    return found


def _mark(steps: Sequence[Mapping[str, Any]], behavior: Mapping[str, Any]) -> str:
    """What went wrong with the model here, in a word."""
    if any(_hit(s, behavior) for s in steps):
        return "attack succeeded"
    last = [s for s in steps if s["model_completions"]][-1:]
    for judge, value in (pair for s in last for pair in _scores(s, 0).items()):
        view = judge_view(judge)
        if value is not None and value < view.threshold:
            if view.metric(behavior) == "accuracy":
                return "wrong"
            if view.metric(behavior) == "over_refusal":
                return "refused"
    known = [
        v for s in steps for k in range(len(s["model_completions"])) for v in _scores(s, k).values()
    ]
    return "" if any(v is not None for v in known) else "unscored"


def _scored_harmful(step: Mapping[str, Any], k: int, behavior: Mapping[str, Any]) -> bool:
    """Whether a judge of harm or compliance calls this answer to a harmful request a success."""
    return any(
        value is not None and value >= judge_view(judge).threshold
        for judge, value in _scores(step, k).items()
        if judge_view(judge).metric(behavior) == "attack_success"
        or (judge_view(judge).semantics == "harm" and not behavior.get("harmful", True))
    )


def _step(step: Mapping[str, Any], behavior: Mapping[str, Any]) -> dict[str, Any]:
    messages = step["model_input"]
    shown: dict[str, Any] = {
        "step": step["step"],
        "loss": step["loss"],
        "input": None if messages is None else _messages(messages),
        "tokens": len(step.get("model_input_tokens") or ()),
        "flags": [visible_line(f) for f in step.get("flags", ())],
        "answers": [
            _answer(step, k, text, behavior) for k, text in enumerate(step["model_completions"])
        ],
    }
    if step.get("prefill"):
        shown["prefill"] = visible(step["prefill"])
    return shown


def _messages(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    return [{"role": visible_line(m["role"]), "content": visible(m["content"])} for m in messages]


def _answer(
    step: Mapping[str, Any], k: int, text: str, behavior: Mapping[str, Any]
) -> dict[str, Any]:
    facts = step["completions"][k] if k < len(step.get("completions", ())) else {}
    scores = _scores(step, k)
    unknown = behavior.get("harmful", True) and all(v is None for v in scores.values())
    answer: dict[str, Any] = {
        "text": visible(text),
        "scores": {visible_line(j): v for j, v in scores.items()},
        "end": visible_line(str(facts.get("finish_reason", "stop"))),
        "hide": "scored harmful"
        if _scored_harmful(step, k, behavior)
        else "not scored"
        if unknown
        else None,
    }
    if facts.get("error"):
        answer["error"] = visible_line(str(facts["error"]))
    if facts.get("undefended") not in (None, text):
        answer["undefended"] = visible(str(facts["undefended"]))
    return answer
