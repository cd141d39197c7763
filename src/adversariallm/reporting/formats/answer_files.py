"""Old answers from any CSV or JSONL of prompts and responses, so that they can be judged.

Which column is which is said by the user; nothing is guessed from the contents.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adversariallm.core.errors import DataError
from adversariallm.core.records import BehaviorRun, CompletionRecord, StepRecord
from adversariallm.reporting.formats._common import (
    behavior_facts,
    imported_document,
    search_ledgers,
)

FIELDS = (
    "prompt",
    "response",
    "goal",
    "id",
    "category",
    "target",
    "reference",
    "context",
    "harmful",
    "model",
    "attack",
)
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


def read(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    model: str = "unknown",
    attack: str = "unknown",
    dataset: str | None = None,
    **_: Any,
) -> list[dict[str, Any]]:
    """Read answers, one document for each model and attack that the rows name.

    Args:
        path: `.csv`, or JSON objects one a line.
        columns: field -> column name, for fields of `FIELDS` whose column is called otherwise.
            `response` and one of `prompt` and `goal` must be there.
        model: for rows without a model column.
        attack: for rows without an attack column.
        dataset: name of the set; the file's name if None.

    Raises:
        DataError: a column is missing or a row is not usable, with its number.
    """
    names = {field: (columns or {}).get(field, field) for field in FIELDS}
    unknown = set(columns or {}) - set(FIELDS)
    if unknown:
        raise DataError(
            f"unknown field {sorted(unknown)[0]!r}: expected some of {', '.join(FIELDS)}"
        )
    groups: dict[tuple[str, str], list[BehaviorRun]] = {}
    for number, row in enumerate(_rows(path), start=1):
        found = {
            field: row.get(column)
            for field, column in names.items()
            if row.get(column) not in (None, "")
        }
        key = (str(found.get("model", model)), str(found.get("attack", attack)))
        groups.setdefault(key, []).append(_run(found, names, row, number, path))
    if not groups:
        raise DataError(f"{path} has no rows")
    return [
        imported_document(
            form="answers", model=who, attack=how, dataset=dataset or path.stem, runs=runs
        )
        for (who, how), runs in groups.items()
    ]


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                yield from csv.DictReader(file)
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise DataError(f"{path}, line {number}: expected a JSON object")
                    yield row
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not readable as {path.suffix or 'JSONL'}: {error}") from error


def _run(
    found: Mapping[str, Any],
    names: Mapping[str, str],
    row: Mapping[str, Any],
    number: int,
    path: Path,
) -> BehaviorRun:
    if names["response"] not in row:
        raise DataError(
            f"{path} has no column {names['response']!r} for the response; "
            f"it has {', '.join(map(str, row))}"
        )
    goal = found.get("goal", found.get("prompt"))
    if goal is None:
        raise DataError(
            f"{path}, row {number}: neither {names['prompt']!r} nor {names['goal']!r} has a text"
        )
    facts = behavior_facts(
        str(found.get("id", f"row{number}")),
        str(goal),
        harmful=_truth(found.get("harmful", True), number, path),
        **{k: found.get(k) for k in ("category", "target", "reference", "context")},
    )
    answer = found.get("response")
    step = StepRecord(
        step=0,
        model_input=[{"role": "user", "content": str(found.get("prompt", goal))}],
        model_completions=[] if answer is None else [str(answer)],
        completions=[] if answer is None else [CompletionRecord(sample=0)],
        flops=None,
        ledgers=search_ledgers(),
    )
    return BehaviorRun(behavior=facts, original_prompt=facts["conversation"], steps=[step])


def _truth(value: Any, number: int, path: Path) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise DataError(f"{path}, row {number}: harmful={value!r}, expected true or false")
    return text in _TRUE
