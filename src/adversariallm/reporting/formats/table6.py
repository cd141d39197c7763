"""The paper's `run.json` (Table 6), both ways: what the paper's own tools read and wrote.

Scores are `scores[judge][type][k]`. Our further fields are left out when writing and set to their
defaults when reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adversariallm.core.config import stable_hash
from adversariallm.core.errors import DataError
from adversariallm.core.records import BehaviorRun, CompletionRecord, StepRecord
from adversariallm.evaluation.facts import Document, setting_of
from adversariallm.reporting.formats._common import (
    behavior_facts,
    imported_document,
    read_json,
    safe_file_name,
    search_ledgers,
    write_json,
)

_OF_A_RUN = (
    "model", "attack", "attack_params", "attack_version", "dataset", "dataset_params",
    "fit", "evaluated", "seed", "parent",
)  # fmt: skip
STEP_KEYS = (
    "step",
    "model_completions",
    "scores",
    "time_taken",
    "flops",
    "loss",
    "model_input",
    "model_input_tokens",
    "model_input_embeddings",
)


def read(path: Path, **_: Any) -> list[dict[str, Any]]:
    """Read one `run.json`, or every `run.json` below a folder.

    Raises:
        DataError: not such a file.
    """
    files = sorted(path.rglob("run.json")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no run.json")
    return [_document(file) for file in files]


def _document(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict) or not {"config", "runs"} <= data.keys():
        raise DataError(f"{path} is no run.json of Table 6: expected the keys config and runs")
    config = data["config"] if isinstance(data["config"], dict) else {}
    options = dict(config.get("attack_params") or {})
    seed = config["seed"] if "seed" in config else options.pop("seed", 0)
    runs = [
        _run(run, name, path)
        for run, name in zip(data["runs"], _ids(config, data["runs"]), strict=True)
    ]
    return imported_document(
        form="table6",
        model=_name(config, "model"),
        attack=_name(config, "attack"),
        dataset=_name(config, "dataset"),
        runs=runs,
        options=options,
        defense=_defense(config),
        seed=seed if isinstance(seed, int) else 0,
        source={
            "config": data["config"],
            "setting": _setting(config),
            **{k: v for k, v in data.items() if k not in ("config", "runs")},
        },
    )


def _ids(config: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the items as our own files tell them; else equal prompts get equal ids.

    So the same item of another file, attack or seed has the same id and can be compared.
    """
    used = config.get("evaluated") or config.get("fit")
    known = used.get("ids") if isinstance(used, dict) else None
    if isinstance(known, list) and len(known) == len(runs):
        return [str(name) for name in known]
    dataset = _name(config, "dataset")
    prompts = [run.get("original_prompt") for run in runs]
    return [f"{dataset}_{stable_hash(prompt, 8)}" for prompt in prompts]


def _setting(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the file's configuration says besides its names, its items and its seed."""
    rest = {k: v for k, v in config.items() if k not in _OF_A_RUN}
    if isinstance(config.get("parent"), dict):
        rest["parent"] = {"kind": config["parent"].get("kind")}
    return rest


def _defense(config: Mapping[str, Any]) -> str | None:
    found = config.get("defense")
    rows = found if isinstance(found, list) else [found] if found else []
    names = [str(row.get("name", "unknown")) if isinstance(row, dict) else str(row) for row in rows]
    return "+".join(names) or None


def _name(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key)
    return str(
        value.get("name", value.get("id", "unknown"))
        if isinstance(value, dict)
        else value or "unknown"
    )


def _run(run: Mapping[str, Any], name: str, path: Path) -> BehaviorRun:
    prompt = run.get("original_prompt") or []
    users = [m["content"] for m in prompt if m.get("role") == "user"]
    if not users:
        raise DataError(f"{path}: a run has no user message in original_prompt")
    goal = users[-1]
    facts = behavior_facts(str(run.get("behavior", {}).get("id", name)), goal)
    asked = [m for m in prompt if m.get("role") != "assistant"]
    targets = [m["content"] for m in prompt if m.get("role") == "assistant"]
    facts |= {"conversation": asked} | (
        {"target": targets[-1], "target_source": "dataset"} if targets else {}
    )
    rest = {
        k: v
        for k, v in run.items()
        if k not in ("original_prompt", "steps", "total_time", "behavior")
    }
    if rest:
        facts["extra"] = {"table6": rest}
    return BehaviorRun(
        behavior=facts,
        original_prompt=prompt,
        steps=[_step(s) for s in run.get("steps", ())],
        total_time=run.get("total_time") or 0.0,
    )


def _step(step: Mapping[str, Any]) -> StepRecord:
    answers = list(step.get("model_completions") or ())
    rest = {k: v for k, v in step.items() if k not in STEP_KEYS}
    sent = step.get("model_input")
    embeddings = step.get("model_input_embeddings")
    return StepRecord(
        step=step["step"],
        loss=step.get("loss"),
        flops=step.get("flops"),
        time_taken=step.get("time_taken") or 0.0,
        model_completions=answers,
        completions=[CompletionRecord(sample=k) for k in range(len(answers))],
        scores=step.get("scores") or {},
        model_input=sent if isinstance(sent, list) else None,
        model_input_tokens=step.get("model_input_tokens"),
        model_input_embeddings=embeddings if isinstance(embeddings, str) else None,
        ledgers=search_ledgers(flops=step.get("flops")),
        note={"table6": rest} if rest else {},
    )


def write(
    documents: Sequence[Document], folder: Path, *, form: str = "table6", judge: str | None = None
) -> list[Path]:
    """Write `MODEL/ATTACK/RUN/run.json` for every run, with all scores.

    Args:
        documents: joined run documents.
        folder: where the tree begins.
        form: ignored; there is one form.
        judge: keep only this judge's scores; all if None.
    """
    paths = []
    for document in documents:
        names = setting_of(document)
        base = (
            folder / safe_file_name(names.model) / safe_file_name(names.attack) / document["run_id"]
        )
        paths.append(write_json(base / "run.json", plain(document, judge), indent=None))
    return paths


def plain(document: Document, judge: str | None = None) -> dict[str, Any]:
    """A run document with the fields of Table 6 alone."""
    source = document["config"].get("imported", {})
    original = "config" in source
    names = setting_of(document)
    config = (
        source["config"]
        if original
        else {
            "model": names.model,
            "attack": names.attack,
            "dataset": names.dataset,
            "attack_params": document["config"].get("attack", {}).get("options", {}),
            **document["config"],
            "attack_version": document["config"].get("attack", {}).get("version"),
        }
    )
    if not original:
        config |= {"model": names.model, "attack": names.attack, "dataset": names.dataset}
    rest = (
        {k: v for k, v in source.items() if k not in ("config", "format", "content", "setting")}
        if original
        else {"total_time": document.get("total_time", 0.0)}
    )
    return {"config": config, "runs": [_plain_run(r, judge) for r in document["runs"]], **rest}


def _plain_run(run: Mapping[str, Any], judge: str | None) -> dict[str, Any]:
    return {
        "original_prompt": run["original_prompt"],
        "steps": [_plain_step(s, judge) for s in run["steps"]],
        "total_time": run["total_time"],
        **run["behavior"].get("extra", {}).get("table6", {}),
    }


def _plain_step(step: Mapping[str, Any], judge: str | None) -> dict[str, Any]:
    scores = {j: t for j, t in step["scores"].items() if judge in (None, j)}
    rest: dict[str, Any] = step["note"].get("table6", {})
    return {k: step[k] for k in STEP_KEYS} | {"scores": scores} | rest
