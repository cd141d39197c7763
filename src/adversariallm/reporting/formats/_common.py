"""What formats share: documents from foreign files, and the step that stands for a run.

Nothing here knows a file layout.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adversariallm.core.budget import LedgerRows, Ledgers, Usage, UsageRow
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import DataError
from adversariallm.core.records import BehaviorRun, RunDocument
from adversariallm.evaluation.facts import Document, judge_view, judges_of
from adversariallm.evaluation.success import When


def imported_document(
    *,
    form: str,
    model: str,
    attack: str,
    dataset: str,
    runs: Sequence[BehaviorRun],
    source: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    defense: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A run document for results that were made elsewhere.

    Args:
        form: name of the format.
        model: the model's name as the file gives it; nothing is known of its weights.
        attack: the attack's name as the file gives it.
        dataset: name of the behaviors.
        runs: one entry per behavior and test case.
        source: what else is needed to write the same file again. With a key `setting` the file says
            itself which runs belong together: those of equal `setting`.
        options: the attack's options, where the file gives them.
        defense: the defense's name.
        seed: the seed, where the file gives it.
    """
    ids = [r.behavior["id"] for r in runs]
    content = [r.model_dump(mode="json", exclude={"steps": {"__all__": {"scores"}}}) for r in runs]
    config = {
        "imported": {"format": form, "content": stable_hash(content), **dict(source or {})},
        "attack": {"name": attack, "version": 0, "options": dict(options or {})},
        "models": [{"identity": {"name": model, "weights": "unknown"}}],
        "defense": [{"name": defense, "version": 0, "options": {}}] if defense else [],
        "fit": {"dataset": dataset, "content_hash": "imported", "ids": ids, "keys": ids},
        "seed": seed,
    }
    document = RunDocument(
        run_id=stable_hash(config),
        config=config,
        runs=list(runs),
        ledgers=_sum([step.ledgers for run in runs for step in run.steps]),
        total_time=sum(run.total_time for run in runs),
    )
    return document.model_dump(mode="json")


def _sum(rows: Iterable[LedgerRows]) -> LedgerRows:
    total = Ledgers()
    for row in rows:
        total = total + Ledgers.from_dict(row)
    return total.to_dict()


def search_ledgers(*, queries: int | None = None, flops: int | None = None) -> LedgerRows:
    """Ledgers of a step for what a file says that the search cost; unknown FLOPs are null.

    Queries have no null: an imported run whose ledgers hold none has unknown ones.
    """
    row: UsageRow = {"flops": flops, "flops_2n": None}
    return {"optimization": {"model": row | ({"queries": queries} if queries else {})}}


def behavior_facts(identity: str, goal: str, **facts: Any) -> dict[str, Any]:
    """A stored behavior whose clean request is its goal; empty facts are left out."""
    row = {
        "id": identity,
        "goal": goal,
        "harmful": True,
        "conversation": [{"role": "user", "content": goal}],
    }
    return row | {k: v for k, v in facts.items() if v is not None and v != {}}


def chosen_step(
    run: Mapping[str, Any], judge: str | None, when: When = "any"
) -> Mapping[str, Any] | None:
    """The step that stands for a behavior; only steps with completions count, None without any.

    Args:
        run: one evaluated behavior.
        judge: whose scores are read.
        when: which step: `any` the first success (where there is none, the lowest loss among the
            scored steps, or the last of them), `best_loss` the lowest loss, `last` the last.
    """
    steps: list[Mapping[str, Any]] = [s for s in run["steps"] if s["model_completions"]]
    if when == "any" and judge is not None:
        for step in steps:
            if any(verdicts(step, judge)):
                return step
        steps = [s for s in steps if set(verdicts(s, judge)) != {None}] or steps
    known = [s for s in steps if s["loss"] is not None]
    if known and when != "last":
        return min(known, key=lambda s: s["loss"])
    return steps[-1] if steps else None


def chosen_answer(step: Mapping[str, Any], judge: str | None) -> int:
    """Which completion stands for a step: the first success, else the first scored, else the first.

    So a format with one answer for each behavior never shows an unscored answer as a failure.
    """
    found = [] if judge is None else verdicts(step, judge)
    for wanted in (True, False):
        if wanted in found:
            return found.index(wanted)
    return 0


def verdicts(step: Mapping[str, Any], judge: str) -> list[bool | None]:
    """Whether each completion is a hit; None where unscored."""
    threshold = judge_view(judge).threshold
    return [None if s is None else s >= threshold for s in scores_of(step, judge)]


def attack_verdicts(
    run: Mapping[str, Any], step: Mapping[str, Any], judge: str
) -> list[bool | None]:
    """Verdicts on a harmful request; all None on a harmless one, whose answer is no jailbreak."""
    if judge_view(judge).metric(run["behavior"]) == "attack_success":
        return verdicts(step, judge)
    return [None] * len(step["model_completions"])


def scores_of(step: Mapping[str, Any], judge: str) -> list[float | None]:
    """One value of the judge's score key per completion; None where there is no number."""
    column = step["scores"].get(judge, {}).get(judge_view(judge).score_key, [])
    count = len(step["model_completions"])
    known = [None if v is None or not math.isfinite(v) else v for v in column[:count]]
    return [*known, *[None] * (count - len(known))]


def prompt_text(step: Mapping[str, Any]) -> str | None:
    """The last user message sent; None for embeddings."""
    users = [m["content"] for m in step["model_input"] or () if m["role"] == "user"]
    return users[-1] if users else None


def search_usage(run: Mapping[str, Any], upto: int | None = None) -> Usage:
    """What the search spent on a behavior, up to and including a step number."""
    total = Usage()
    for step in run["steps"]:
        if upto is None or step["step"] <= upto:
            total = total + Ledgers.from_dict(step["ledgers"]).total(
                "setup", "optimization", "sampling"
            )
    return total


def pick_judge(documents: Sequence[Document], judge: str | None) -> str | None:
    """The judge asked for, or the only one there is; None where no judge scored anything.

    Raises:
        DataError: there are several and none was chosen.
    """
    found = [j for j in judges_of(documents) if judge_view(j).semantics != "utility"]
    if judge is not None:
        if judge not in found:
            raise DataError(
                f"judge {judge!r} scored nothing here; found: {', '.join(found) or 'none'}"
            )
        return judge
    if len(found) > 1:
        raise DataError(
            f"several judges scored these runs: {', '.join(found)}; choose one with --judge"
        )
    return found[0] if found else None


def safe_file_name(text: str) -> str:
    """A file name made of letters, digits, dots and hyphens; a hash keeps different texts apart."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")[:80]
    if plain == text:
        return plain
    return f"{plain or 'x'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:6]}"


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> Path:
    """Write JSON and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=indent, ensure_ascii=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        DataError: no such file, or not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
