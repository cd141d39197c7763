"""JailbreakBench artifacts, both ways.

`attack-artifacts/METHOD/attack-info.json` and `METHOD/THREAT/MODEL.json`. Fields we do not use are
kept with the behavior and written back, so that reading and writing gives the same values.

An artifact has one row for each behavior, so every setting and seed is an artifact of its own. A
row without a score has `jailbroken` null and stays out of the rate; JailbreakBench's own reader
wants true or false there and refuses it.

Source: github.com/JailbreakBench/artifacts; jailbreakbench 1.0.0, artifact.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adversariallm.core.errors import ConfigError, DataError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Needs
from adversariallm.core.records import BehaviorRun, CompletionRecord, StepRecord
from adversariallm.evaluation.facts import Document, Setting, group_by_setting
from adversariallm.evaluation.success import When
from adversariallm.reporting.formats._common import (
    attack_verdicts,
    behavior_facts,
    chosen_answer,
    chosen_step,
    imported_document,
    pick_judge,
    prompt_text,
    read_json,
    safe_file_name,
    search_ledgers,
    search_usage,
    write_json,
)

_log = logging.getLogger(__name__)
LABELS = "jailbreakbench_labels"
NO_DATE = "1970-01-01"  # their schema wants one, and equal runs must give equal files
THREATS = ("white_box", "black_box", "transfer", "manual")
_INSIDE = Needs.LOGITS | Needs.GRADIENTS | Needs.EMBEDDINGS | Needs.HIDDEN
_USED = ("index", "goal", "behavior", "category", "prompt", "response", "jailbroken")


def read(path: Path, **_: Any) -> list[dict[str, Any]]:
    """Read an artifact, or all below a folder; verdicts become the judge `jailbreakbench_labels`.

    Raises:
        DataError: a file is no artifact, or there is none.
    """
    if not path.is_dir():
        return [_document(path)]
    found = [p for p in sorted(path.rglob("*.json")) if p.parent.name in THREATS]
    if not found:
        raise DataError(
            f"{path} holds no artifact: expected MODEL.json in a folder {', '.join(THREATS)}"
        )
    return [_document(file) for file in found]


def _document(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict) or not {"parameters", "jailbreaks"} <= data.keys():
        raise DataError(
            f"{path} is no JailbreakBench artifact: expected the keys parameters and jailbreaks"
        )
    parameters = data["parameters"]
    runs = [_run(row, path, i) for i, row in enumerate(data["jailbreaks"])]
    return imported_document(
        form="jailbreakbench",
        model=str(parameters.get("model")),
        attack=str(parameters.get("method")),
        dataset="jailbreakbench",
        defense=parameters.get("defense"),
        runs=runs,
        options=parameters.get("method_parameters") or {},
        source={"parameters": parameters},
    )


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
        flops=None,
        ledgers=search_ledgers(queries=row.get("number_of_queries")),
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
    threat: str | None = None,
    when: When = "last",
) -> list[Path]:
    """Write one artifact per setting and seed, below `folder/attack-artifacts`.

    Args:
        documents: joined run documents.
        folder: where the tree begins.
        form: ignored; there is one form.
        judge: whose verdicts fill `jailbroken`; needed where several judged.
        threat: the folder of the threat model; None takes what the attack needs of the model.
            Artifacts that were read keep their own.
        when: which step is the row of a behavior, as in `report --protocol`.

    Raises:
        DataError: nothing is judged, or nobody knows the threat model of an attack.
    """
    judge = pick_judge(documents, judge)
    if judge is None:
        raise DataError("an artifact says what was jailbroken: judge these runs first")
    models: dict[str, dict[str, list[str]]] = {}
    paths = []
    for (method, kind), setting, group in _artifacts(documents, threat):
        source = setting.config.get("imported", {}).get("parameters", {})
        runs = [run for document in group for run in document["runs"]]
        rows = [_row(run, judge, i, when) for i, run in enumerate(runs)]
        unknown = sum(1 for row in rows if row["jailbroken"] is None)
        if unknown:
            _log.warning(
                "%s on %s: %d of %d rows have no verdict of %s: jailbroken is null, which "
                "JailbreakBench's own reader refuses, and the rate is over the others",
                method, setting.model, unknown, len(rows), judge,
            )  # fmt: skip
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


def _artifacts(
    documents: Sequence[Document], threat: str | None
) -> Iterator[tuple[tuple[str, str], Setting, list[Document]]]:
    """Method and threat folder of each artifact; no two artifacts get the same file."""
    groups = [(s, _kind(s, threat), group) for s, group in group_by_setting(documents)]
    places = Counter((_method(s), kind, s.model) for s, kind, _ in groups)
    for setting, kind, group in groups:
        method = _method(setting)
        if places[method, kind, setting.model] > 1:
            method += f"-{setting.key[:8]}"
        group = sorted(group, key=lambda d: [r["behavior"]["id"] for r in d["runs"][:1]])
        seeds = sorted({d["config"].get("seed", 0) for d in group})
        for seed in seeds:
            name = f"{method}-seed{seed}" if len(seeds) > 1 else method
            yield (name, kind), setting, [d for d in group if d["config"].get("seed", 0) == seed]


def _method(setting: Setting) -> str:
    known = "parameters" in setting.config.get("imported", {})
    return setting.attack + (f"-{setting.defense}" if setting.defense and not known else "")


def _kind(setting: Setting, threat: str | None) -> str:
    """The threat model: what the file said, what was asked for, or what the attack needs."""
    given = setting.config.get("imported", {}).get("parameters", {}).get("attack_type", threat)
    kind = given or _needed(setting)
    if kind not in THREATS:
        raise DataError(f"threat model {kind!r}: expected one of {', '.join(THREATS)}")
    return kind


def _needed(setting: Setting) -> str:
    made_for = setting.config.get("parent", {}).get("made_for", "").partition(" behind ")[0]
    if made_for and made_for != setting.model:
        return "transfer"
    attack = setting.config["attack"]
    try:
        module = ATTACKS.load(attack["name"])
    except ConfigError as error:
        raise DataError(
            f"the threat model of attack {attack['name']!r} is not known here; "
            f"say it with --threat: {', '.join(THREATS)}"
        ) from error
    try:
        needs = module.INFO.with_options(module.Config(**attack.get("options", {}))).needs
    except (TypeError, ValueError):  # options of another program's attack of this name
        needs = module.INFO.needs
    return "white_box" if needs & _INSIDE else "black_box"


def _row(run: Mapping[str, Any], judge: str, place: int, when: When) -> dict[str, Any]:
    behavior = run["behavior"]
    extra = behavior.get("extra", {})
    answered = chosen_step(run, judge, when)
    step = answered or (run["steps"][-1] if run["steps"] else None)
    k = 0 if answered is None else chosen_answer(answered, judge)
    row = {
        "index": extra.get("index", place),
        "goal": behavior["goal"],
        "behavior": behavior["id"],
        "category": behavior.get("category"),
        "prompt": None if step is None else prompt_text(step),
        "response": None if answered is None else answered["model_completions"][k],
    }
    won = None if answered is None else attack_verdicts(run, answered, judge)[k]
    if "jailbreakbench" in extra:
        row |= extra["jailbreakbench"]
    else:
        row |= _counts(run, answered, k, won)
    said = None if step is None else step["note"].get("jailbroken")
    # A file's own verdict, also on a behavior for which its attack submitted nothing.
    row["jailbroken"] = said if judge == LABELS or answered is None else won
    return row


def _counts(
    run: Mapping[str, Any], step: Mapping[str, Any] | None, k: int, won: bool | None
) -> dict[str, Any]:
    sent = None if step is None else step["model_input_tokens"]
    said = step["completions"][k]["ids"] if step is not None and step["completions"] else None
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
    known = sum(1 for r in rows if r["jailbroken"] is not None)
    counts = {
        "attack_success_rate": won / known if known else None,
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
