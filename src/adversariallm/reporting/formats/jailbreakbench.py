"""JailbreakBench artifacts, both ways.

`attack-artifacts/METHOD/attack-info.json` and `METHOD/THREAT/MODEL.json`. Fields we do not use are
kept with the behavior and written back, so that reading and writing gives the same values.

Source: github.com/JailbreakBench/artifacts; jailbreakbench 1.0.0, artifact.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adversariallm.core.errors import DataError
from adversariallm.core.records import BehaviorRun, CompletionRecord, StepRecord
from adversariallm.evaluation.facts import Document, Setting, group_by_setting
from adversariallm.reporting.formats._common import (
    behavior_facts,
    chosen_step,
    imported_document,
    pick_judge,
    prompt_text,
    read_json,
    safe_file_name,
    search_usage,
    verdict,
    write_json,
)

LABELS = "jailbreakbench_labels"
NO_DATE = "1970-01-01"  # their schema wants one, and equal runs must give equal files
THREATS = ("white_box", "black_box", "transfer", "manual")
_USED = ("index", "goal", "behavior", "category", "prompt", "response", "jailbroken")


def read(path: Path, **_: Any) -> list[dict[str, Any]]:
    """Read one artifact file; its verdicts become the judge `jailbreakbench_labels`.

    Raises:
        DataError: the file is no artifact.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not {"parameters", "jailbreaks"} <= data.keys():
        raise DataError(
            f"{path} is no JailbreakBench artifact: expected the keys parameters and jailbreaks"
        )
    parameters = data["parameters"]
    runs = [_run(row, path, i) for i, row in enumerate(data["jailbreaks"])]
    return [
        imported_document(
            form="jailbreakbench",
            model=str(parameters.get("model")),
            attack=str(parameters.get("method")),
            dataset="jailbreakbench",
            defense=parameters.get("defense"),
            runs=runs,
            options=parameters.get("method_parameters") or {},
            source={"parameters": parameters},
        )
    ]


def _run(row: Mapping[str, Any], path: Path, place: int) -> BehaviorRun:
    try:
        goal, name = row["goal"], row["behavior"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: entry {place} of jailbreaks has no goal or behavior") from error
    rest = {k: v for k, v in row.items() if k not in _USED}
    facts = behavior_facts(
        str(name),
        goal,
        category=row.get("category"),
        extra={"index": row.get("index"), "jailbreakbench": rest},
    )
    prompt, response = row.get("prompt"), row.get("response")
    step = StepRecord(
        step=0,
        model_input=None if prompt is None else [{"role": "user", "content": prompt}],
        model_completions=[] if response is None else [response],
        completions=[] if response is None else [CompletionRecord(sample=0)],
        note={"jailbroken": row.get("jailbroken")},
    )
    if response is not None and row.get("jailbroken") is not None:
        step.scores = {LABELS: {"p_harmful": [float(row["jailbroken"])]}}
    return BehaviorRun(behavior=facts, original_prompt=facts["conversation"], steps=[step])


def write(
    documents: Sequence[Document],
    folder: Path,
    *,
    form: str = "jailbreakbench",
    judge: str | None = None,
    threat: str = "white_box",
) -> list[Path]:
    """Write one artifact per setting, below `folder/attack-artifacts`.

    Args:
        documents: joined run documents.
        folder: where the tree begins.
        form: ignored; there is one form.
        judge: whose verdicts fill `jailbroken`; needed where several judged.
        threat: the folder of the threat model; artifacts that were read keep their own.
    """
    judge = pick_judge(documents, judge)
    if judge is None:
        raise DataError("an artifact says what was jailbroken: judge these runs first")
    models: dict[str, dict[str, list[str]]] = {}
    paths = []
    for setting, group in group_by_setting(documents):
        source = setting.config.get("imported", {}).get("parameters", {})
        kind = source.get("attack_type", threat)
        if kind not in THREATS:
            raise DataError(f"threat model {kind!r}: expected one of {', '.join(THREATS)}")
        method = setting.attack + (f"-{setting.defense}" if setting.defense and not source else "")
        rows = [_row(run, judge, i) for i, run in enumerate(r for d in group for r in d["runs"])]
        artifact = {
            "parameters": _parameters(setting.config, source, rows, setting, kind, judge),
            "jailbreaks": rows,
        }
        base = folder / "attack-artifacts" / safe_file_name(method)
        paths.append(write_json(base / kind / f"{safe_file_name(setting.model)}.json", artifact))
        models.setdefault(method, {}).setdefault(setting.model, []).append(kind)
    for method, found in models.items():
        path = folder / "attack-artifacts" / safe_file_name(method) / "attack-info.json"
        paths.append(write_json(path, {"models": found}))
    return paths


def _row(run: Mapping[str, Any], judge: str, place: int) -> dict[str, Any]:
    behavior = run["behavior"]
    extra = behavior.get("extra", {})
    step = chosen_step(run, judge) or (run["steps"][-1] if run["steps"] else None)
    answered = step is not None and bool(step["model_completions"])
    row = {
        "index": extra.get("index", place),
        "goal": behavior["goal"],
        "behavior": behavior["id"],
        "category": behavior.get("category"),
        "prompt": None if step is None else prompt_text(step),
        "response": step["model_completions"][0] if step is not None and answered else None,
    }
    if "jailbreakbench" in extra:
        row |= extra["jailbreakbench"]
    else:
        row |= _counts(run, step if answered else None, judge)
    if judge == LABELS and step is not None and "jailbroken" in step["note"]:
        row["jailbroken"] = step["note"]["jailbroken"]
    else:
        row["jailbroken"] = bool(verdict(step, judge)) if step is not None and answered else False
    return row


def _counts(run: Mapping[str, Any], step: Mapping[str, Any] | None, judge: str) -> dict[str, Any]:
    won = step is not None and verdict(step, judge)
    sent = None if step is None else step["model_input_tokens"]
    said = step["completions"][0]["ids"] if step is not None and step["completions"] else None
    return {
        "number_of_queries": int(search_usage(run).queries),
        "queries_to_jailbreak": int(search_usage(run, step["step"]).queries)
        if step is not None and won
        else None,
        "prompt_tokens": None if sent is None else len(sent),
        "response_tokens": None if said is None else len(said),
    }


def _parameters(
    config: Mapping[str, Any],
    source: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    names: Setting,
    kind: str,
    judge: str,
) -> dict[str, Any]:
    if source and judge == LABELS:
        return dict(source)
    won = sum(1 for r in rows if r["jailbroken"])
    counts = {
        "attack_success_rate": won / len(rows) if rows else None,
        "total_number_of_jailbreaks": won,
        "number_of_submitted_prompts": sum(1 for r in rows if r["prompt"] is not None),
    }
    if source:
        return dict(source) | counts
    return {
        "method": names.attack,
        "model": names.model,
        "attack_type": kind,
        "defense": names.defense or None,
        **counts,
        "total_number_of_queries": _total(rows, "number_of_queries"),
        "total_prompt_tokens": _total(rows, "prompt_tokens"),
        "total_response_tokens": _total(rows, "response_tokens"),
        "evaluation_date": NO_DATE,
        "evaluation_llm_provider": "local",
        "method_parameters": {
            k: v
            for k, v in config.get("attack", {}).get("options", {}).items()
            if isinstance(v, (str, int, float))
        },
    }


def _total(rows: Sequence[Mapping[str, Any]], key: str) -> int | None:
    known = [r[key] for r in rows if r.get(key) is not None]
    return sum(known) if known else None
