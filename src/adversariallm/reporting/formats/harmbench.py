"""HarmBench's three files, both ways: test cases, completions and results.

Test cases also stand in a folder for each behavior, with the losses and options of the attack, as
its scripts leave them. A behavior with several test cases is several entries of one run, so that
its rate is the mean over its cases as HarmBench defines it. Clipping answers to the classifier's
512 tokens is the judge's business.

Source: github.com/centerforaisafety/HarmBench, generate_completions.py and evaluate_completions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adversariallm.core.errors import DataError
from adversariallm.core.records import BehaviorRun, CompletionRecord, StepRecord
from adversariallm.evaluation.facts import Document, group_by_setting
from adversariallm.evaluation.success import When
from adversariallm.reporting.formats._common import (
    attack_verdicts,
    behavior_facts,
    chosen_step,
    imported_document,
    pick_judge,
    prompt_text,
    read_json,
    safe_file_name,
    search_ledgers,
    write_json,
)

FILES = ("results.json", "completions.json", "test_cases.json")
LABELS = "harmbench_labels"
_USED = ("test_case", "generation", "label")


def read(
    path: Path,
    *,
    behaviors: Path | None = None,
    model: str = "unknown",
    attack: str = "unknown",
    **_: Any,
) -> list[dict[str, Any]]:
    """Read a test-case, completions or results file; labels become the judge `harmbench_labels`.

    Args:
        path: JSON of `{BehaviorID: [...]}`, or a folder with `results.json`, `completions.json` or
            `test_cases.json`, of which the first is read, or a folder of such folders.
        behaviors: HarmBench's behaviors CSV, for goals, categories and contexts; the id is the goal
            without it.
        model: the model that answered; the file does not say.
        attack: the attack that made the cases; of several folders each has its own name.

    Raises:
        DataError: another layout.
    """
    facts = _behaviors(behaviors) if behaviors else {}
    found = _files(path)
    by_folder = len(found) > 1 and attack == "unknown"
    return [
        _document(file, facts, model, file.parent.name if by_folder else attack) for file in found
    ]


def _files(path: Path) -> list[Path]:
    """The file to read in a folder, or in each of its folders as `write` leaves them."""
    if not path.is_dir():
        return [path]
    places = [path, *sorted(p for p in path.iterdir() if p.is_dir())]
    found = {
        place: file
        for place in places
        for file in reversed([place / name for name in FILES])
        if file.is_file()
    }
    if not found:
        raise DataError(f"{path} and its folders hold none of {', '.join(FILES)}")
    return [found[path]] if path in found else list(found.values())


def _document(
    path: Path, facts: Mapping[str, Mapping[str, str]], model: str, attack: str
) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict) or not all(isinstance(v, list) for v in data.values()):
        raise DataError(f"{path} is no HarmBench file: expected lists by behavior id")
    runs = [_run(name, case, facts, path) for name, cases in data.items() for case in cases]
    names = {"behaviors_without_cases": [n for n, cases in data.items() if not cases]}
    return imported_document(
        form="harmbench",
        model=model,
        attack=attack,
        dataset="harmbench",
        runs=runs,
        source={k: v for k, v in names.items() if v},
    )


def _behaviors(path: Path) -> dict[str, dict[str, str]]:
    import csv

    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {row["BehaviorID"]: row for row in csv.DictReader(file)}
    except (OSError, KeyError) as error:
        raise DataError(f"{path} is no behaviors CSV with a BehaviorID column: {error}") from error


def _run(name: str, case: Any, facts: Mapping[str, Mapping[str, str]], path: Path) -> BehaviorRun:
    entry = case if isinstance(case, dict) else {"test_case": case}
    sent = entry.get("test_case")
    if not isinstance(sent, (str, list)):
        raise DataError(f"{path}: a case of {name} has no test_case")
    row = facts.get(name, {})
    behavior = behavior_facts(
        name,
        row.get("Behavior", name),
        category=row.get("SemanticCategory"),
        context=row.get("ContextString") or None,
        extra={"harmbench": {k: v for k, v in entry.items() if k not in _USED}},
    )
    text = sent if isinstance(sent, str) else None  # a list is an image with a text
    answer = entry.get("generation")
    step = StepRecord(
        step=0,
        model_input=None if text is None else [{"role": "user", "content": text}],
        model_completions=[] if answer is None else [answer],
        completions=[] if answer is None else [CompletionRecord(sample=0)],
        note={"test_case": sent, "keys": list(entry)},
        flops=None,
        ledgers=search_ledgers(),
    )
    if answer is not None and entry.get("label") is not None:
        step.scores = {LABELS: {"p_harmful": [float(entry["label"])]}}
    return BehaviorRun(behavior=behavior, original_prompt=behavior["conversation"], steps=[step])


def write(
    documents: Sequence[Document],
    folder: Path,
    *,
    form: str = "harmbench",
    judge: str | None = None,
    when: When = "last",
) -> list[Path]:
    """Write the three files of each setting into a folder of its own.

    Args:
        documents: joined run documents.
        folder: where the folders go.
        form: ignored; there is one form.
        judge: whose verdicts are the labels; without any judge there is no results file.
        when: which step is the test case, as in `report --protocol`; an attacker cannot ask the
            judge, so its last step is its result.
    """
    judge = pick_judge(documents, judge)
    paths = []
    for setting, group in group_by_setting(documents):
        base = folder / safe_file_name(f"{setting.attack}-{setting.model}-{setting.key[:8]}")
        names: list[str] = setting.config.get("imported", {}).get("behaviors_without_cases", [])
        cases: dict[str, list[Any]] = {n: [] for n in names}
        completions: dict[str, list[Any]] = {n: [] for n in names}
        results: dict[str, list[Any]] = {n: [] for n in names}
        for run in (r for d in group for r in d["runs"]):
            _add(run, judge, when, cases, completions, results)
        paths.append(write_json(base / "test_cases.json", cases))
        paths += _individual(base, cases, group)
        paths.append(write_json(base / "completions.json", completions))
        if judge is not None:
            paths.append(write_json(base / "results.json", results))
    return paths


def _individual(
    base: Path, cases: Mapping[str, Sequence[Any]], group: Sequence[Document]
) -> list[Path]:
    """Merged logs, and for each behavior its cases, its logs and the options of the attack."""
    options = {**group[0]["config"].get("attack", {}).get("options", {})}
    logs: dict[str, list[Any]] = {name: [] for name in cases}
    for run in (r for d in group for r in d["runs"]):
        steps = run["steps"]
        losses = {"step": [s["step"] for s in steps], "loss": [s["loss"] for s in steps]}
        logs[run["behavior"]["id"]].append(losses)
    paths = [write_json(base / "logs.json", logs)]
    for name, found in cases.items():
        folder = base / "test_cases_individual_behaviors" / safe_file_name(name)
        paths.append(write_json(folder / "test_cases.json", {name: list(found)}))
        paths.append(write_json(folder / "logs.json", {name: logs[name]}))
        paths.append(write_json(folder / "method_config.json", options))
    return paths


def _add(
    run: Mapping[str, Any],
    judge: str | None,
    when: When,
    cases: dict[str, list[Any]],
    completions: dict[str, list[Any]],
    results: dict[str, list[Any]],
) -> None:
    name = run["behavior"]["id"]
    step = chosen_step(run, judge, when) or (run["steps"][-1] if run["steps"] else None)
    for table in (cases, completions, results):
        table.setdefault(name, [])
    if step is None:
        return
    case = prompt_text(step)
    if case is None:  # an image with a text
        case = step["note"].get("test_case")
    cases[name].append(case)
    rest = run["behavior"].get("extra", {}).get("harmbench", {})
    answers = step["model_completions"]
    labels = [None] * len(answers) if judge is None else attack_verdicts(run, step, judge)
    for label, text in zip(labels, answers, strict=True):
        entry = {"test_case": case, "generation": text}
        completions[name].append(dict(entry))
        if label is not None:
            entry["label"] = int(label)
        results[name].append(entry | rest)
