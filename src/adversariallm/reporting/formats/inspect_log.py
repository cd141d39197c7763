"""Logs that `inspect view` and `inspect_ai.log.read_eval_log` open; written without inspect_ai.

One file per setting. A sample is a behavior (and seed), an epoch is a sampled answer at the step
that stands for the run; with `steps=True` an epoch is a step, for browsing a search. Unscored
answers are NaN and counted. The schema wants dates; runs hold none, so that equal runs give equal
files, and every log says 1970-01-01 and in its metadata why.

Source: inspect_ai log schema, version 2 (read with inspect_ai 0.3).
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adversariallm.core.budget import Ledgers
from adversariallm.core.config import stable_hash
from adversariallm.evaluation.facts import (
    Document,
    Setting,
    distinct_labels,
    group_by_setting,
    judges_of,
)
from adversariallm.evaluation.success import When, rate
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting.formats._common import chosen_step, safe_file_name, scores_of

NO_TIME = "1970-01-01T00:00:00+00:00"
STOP_REASONS = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "max_tokens",
    "context": "model_length",
    "content_filter": "content_filter",
}


def write(
    documents: Sequence[Document],
    folder: Path,
    *,
    form: str = "inspect",
    judge: str | None = None,
    steps: bool = False,
) -> list[Path]:
    """Write one log per setting.

    Args:
        documents: joined run documents.
        folder: where the files go.
        form: `inspect` for `.eval`, `inspect-json` for `.json`.
        judge: judge whose first success chooses the step; all judges' scores are written.
        steps: write every step as an epoch, first answer only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = group_by_setting(documents)
    labels = distinct_labels([s for s, _ in groups])
    paths = []
    for setting, group in groups:
        header, samples = _log(setting, labels[setting.key], group, judge, steps)
        ending = "json" if form == "inspect-json" else "eval"
        created, task = header["eval"]["created"].replace(":", "-"), header["eval"]["task"]
        name = f"{created}_{safe_file_name(task)}_{setting.key[:12]}"
        path = folder / f"{name}{'-steps' if steps else ''}.{ending}"
        if form == "inspect-json":
            path.write_text(json.dumps({**header, "samples": samples}), encoding="utf-8")
        else:
            _write_zip(path, header, samples)
        paths.append(path)
    return paths


def _log(
    setting: Setting, label: str, group: Sequence[Document], judge: str | None, steps: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    judges = judges_of(group)
    judge = judge or (judges[0] if len(judges) == 1 else None)
    samples = [
        s for d in group for r in d["runs"] for s in _samples(d, r, setting, judge, judges, steps)
    ]
    _number(samples)
    epochs = max((s["epoch"] for s in samples), default=1)
    ids = sorted({s["id"] for s in samples})
    generation = setting.config.get("generation", {})
    shield = f"-behind-{setting.defense}" if setting.defense else ""
    identity = stable_hash([setting.key, steps], 22)  # equal ids would be one retried task
    evaluation: dict[str, Any] = {
        "eval_id": identity,
        "run_id": stable_hash([d["run_id"] for d in group], 22),
        "created": NO_TIME,
        "task": f"{label}{shield}-{setting.dataset}".replace("_", "-"),
        "task_id": identity,
        "task_version": 0,
        "task_attribs": {},
        "task_args": {
            "attack": setting.attack,
            **setting.config.get("attack", {}).get("options", {}),
        },
        "dataset": {
            "name": setting.dataset,
            "samples": len(ids),
            "sample_ids": ids,
            "shuffled": False,
        },
        "model": f"adversariallm/{setting.model}",
        "model_args": {},
        "model_generate_config": {
            k: generation[n]
            for k, n in (
                ("temperature", "temperature"),
                ("top_p", "top_p"),
                ("max_tokens", "max_new_tokens"),
            )
            if generation.get(n) is not None
        },
        "config": {"epochs": epochs},
        "packages": {"adversariallm": version("adversariallm")},
        "metadata": {
            "dates": "1970-01-01 is unknown: runs hold no date, so that equal runs are equal",
            "setting": setting.key,
            "runs": [d["run_id"] for d in group],
            "config": setting.config,
        },
    }
    header = {
        "version": 2,
        "status": "success",
        "eval": evaluation,
        "plan": {
            "name": "plan",
            "config": {},
            "steps": [{"solver": setting.attack, "params": dict(evaluation["task_args"])}],
        },
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_result(group, j, samples) for j in judges],
        },
        "stats": {"started_at": NO_TIME, "completed_at": NO_TIME, "model_usage": {}},
    }
    return header, samples


def _number(samples: list[dict[str, Any]]) -> None:
    """Epochs from 1 for each id, in order."""
    seen: dict[str, int] = {}
    for sample in samples:
        seen[sample["id"]] = sample["epoch"] = seen.get(sample["id"], 0) + 1


def _samples(
    document: Document,
    run: Mapping[str, Any],
    setting: Setting,
    judge: str | None,
    judges: Sequence[str],
    steps: bool,
) -> list[dict[str, Any]]:
    if steps:
        chosen = [(s, 1) for s in run["steps"] if s["model_completions"]]
    else:
        step = chosen_step(run, judge)
        chosen = [] if step is None else [(step, len(step["model_completions"]))]
    return [
        _sample(document, run, setting, step, k, judges)
        for step, count in chosen
        for k in range(count)
    ]


def _sample(
    document: Document,
    run: Mapping[str, Any],
    setting: Setting,
    step: Mapping[str, Any],
    k: int,
    judges: Sequence[str],
) -> dict[str, Any]:
    behavior, seed = run["behavior"], document["config"].get("seed", 0)
    facts = step["completions"][k] if k < len(step["completions"]) else {}
    answer = {"role": "assistant", "content": step["model_completions"][k], "source": "generate"}
    sent = step["model_input"] or [{"role": "user", "content": "(embeddings)"}]
    model = f"adversariallm/{setting.model}"
    ledgers = {
        phase: Ledgers.from_dict(step["ledgers"]).total(phase).to_dict()
        for phase in step["ledgers"]
    }
    reason = STOP_REASONS.get(facts.get("finish_reason", "stop"), "unknown")
    return {
        "id": behavior["id"] if seed == 0 else f"{behavior['id']}#seed{seed}",
        "epoch": 1,
        "input": run["original_prompt"],
        "target": str(behavior.get("target") or behavior.get("reference") or ""),
        "messages": [*sent, answer],
        "output": {
            "model": model,
            "completion": answer["content"],
            "choices": [
                {
                    "message": {"role": "assistant", "content": answer["content"]},
                    "stop_reason": reason,
                }
            ],
        },
        "scores": {j: _score(step, j, k) for j in judges},
        "metadata": {
            "goal": behavior.get("goal"),
            "category": behavior.get("category"),
            "run_id": document["run_id"],
            "seed": seed,
            "step": step["step"],
            "sample": facts.get("sample", k),
            "loss_at_step": step["loss"],
            "loss": [s["loss"] for s in run["steps"]],
            "ledgers": ledgers,
            "flags": list(step.get("flags", ())),
        },
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
    }


def _score(step: Mapping[str, Any], judge: str, k: int) -> dict[str, Any]:
    value = scores_of(step, judge)[k]
    errors = step["scores"].get(judge, {}).get("error", [])
    why = errors[k] if k < len(errors) else None
    return {
        "value": math.nan if value is None else value,
        "explanation": f"unscored: {why or 'no score'}" if value is None else None,
        "metadata": {"judge": judge},
    }


def _result(
    group: Sequence[Document], judge: str, samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    trials = trials_of(group, judge)
    values = [s["scores"][judge]["value"] for s in samples]
    known = [v for v in values if not math.isnan(v)]
    metrics: dict[str, float] = {"mean": sum(known) / len(known)} if known else {}
    for metric in sorted({t.metric for t in trials}):
        when: When = "any" if metric == "attack_success" else "last"
        found = rate([t for t in trials if t.metric == metric], when)
        if found.value is not None and found.interval is not None:
            metrics |= {
                metric: found.value,
                f"{metric}_low": found.interval.low,
                f"{metric}_high": found.interval.high,
            }
    return {
        "name": judge,
        "scorer": judge,
        "params": {},
        "scored_samples": len(known),
        "unscored_samples": len(values) - len(known),
        "metrics": {n: {"name": n, "value": v, "params": {}} for n, v in metrics.items()},
    }


def _write_zip(path: Path, header: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    start = {"version": header["version"], "eval": header["eval"], "plan": header["plan"]}
    summaries = [_summary(s) for s in samples]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(name: str, value: Any) -> None:
            info = zipfile.ZipInfo(name)  # a fixed date, so that equal runs give equal bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, json.dumps(value))

        put("_journal/start.json", start)
        for sample in samples:
            put(f"samples/{safe_file_name(sample['id'])}_epoch_{sample['epoch']}.json", sample)
        put("_journal/summaries/1.json", summaries)
        put("summaries.json", summaries)
        put("header.json", header)


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: sample[k] for k in ("id", "epoch", "input", "target", "scores")}
    short = {k: v for k, v in sample["metadata"].items() if not isinstance(v, (dict, list))}
    return kept | {
        "metadata": short,
        "model_usage": {},
        "completed": True,
        "message_count": len(sample["messages"]),
    }
