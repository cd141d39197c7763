"""From tidy rows back to trials, so that figures can be drawn from a frame that a user has cut.

Rows are those of `reporting.tidy.completion_rows`, as a pandas frame or as plain dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from adversariallm.core.errors import DataError
from adversariallm.evaluation.facts import judge_view
from adversariallm.evaluation.trials import COST_KEYS, Trial

NEEDED = ("run_id", "behavior", "seed", "step", "sample", "judge", "measure", "score", "threshold")


def rows_of(frame: Any, needed: Iterable[str] = NEEDED) -> list[dict[str, Any]]:
    """The rows of a pandas frame, or of any iterable of mappings.

    Raises:
        DataError: a column is missing.
    """
    if hasattr(frame, "to_dict"):
        frame = frame.to_dict("records")
    rows = [dict(row) for row in frame]
    missing = [name for name in needed if rows and name not in rows[0]]
    if missing:
        raise DataError(
            f"the frame has no column {missing[0]!r}: expected rows of "
            "load_results(...).completions with all their columns"
        )
    return rows


def trials_from(frame: Any) -> list[Trial]:
    """One trial per run, evaluated behavior and judge; rows without a judge are left out.

    Args:
        frame: rows of `load_results(...).completions`, filtered as you like.

    Raises:
        DataError: a column is missing.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows_of(frame):
        if isinstance(row["judge"], str) and isinstance(row["measure"], str):
            key = (row["run_id"], row.get("entry", 0), row["behavior"], row["judge"])
            groups.setdefault(key, []).append(row)
    return [_trial(rows) for rows in groups.values()]


def _trial(rows: list[dict[str, Any]]) -> Trial:
    first = rows[0]
    by_step: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_step.setdefault(int(row["step"]), []).append(row)
    steps = sorted(by_step)
    width = max(len(found) for found in by_step.values())
    scores = np.full((len(steps), width), np.nan)
    present = np.zeros((len(steps), width), dtype=bool)
    for i, step in enumerate(steps):
        found = sorted(by_step[step], key=lambda row: int(row["sample"]))
        present[i, : len(found)] = True
        scores[i, : len(found)] = [_number(row["score"]) for row in found]
    heads = [by_step[step][0] for step in steps]
    category = first.get("category")
    return Trial(
        run_id=str(first["run_id"]),
        behavior=str(first["behavior"]),
        seed=int(first["seed"]),
        category=category if isinstance(category, str) else None,
        metric=first["measure"],
        judge=replace(judge_view(first["judge"]), threshold=float(first["threshold"])),
        steps=np.array(steps, dtype=np.int64),
        scores=scores,
        present=present,
        loss=np.array([_number(h.get("loss")) for h in heads]),
        search=_costs(heads, "search"),
        sampling=_costs(heads, "sampling"),
    )


def _costs(heads: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    # seconds of sampling are not measured apart, and count as none
    default = 0.0 if phase == "sampling" else math.nan
    return {
        key: np.array([_number(h.get(f"{phase}_{key}", default)) for h in heads])
        for key in COST_KEYS
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def by_label(frame: Any, judge: str | None = None) -> dict[str, list[Trial]]:
    """Trials of attack success by legend text: attack, model and defense.

    Args:
        frame: see `trials_from`.
        judge: the judge to read; the only one of the frame if None.

    Raises:
        DataError: several judges and none was chosen, or this judge is not in the frame.
    """
    rows = rows_of(frame, (*NEEDED, "attack", "model", "defense", "setting"))
    found = sorted({r["judge"] for r in rows if r["measure"] == "attack_success"})
    if judge is None and len(found) > 1:
        raise DataError(
            f"several judges scored these rows: {', '.join(found)}; choose one (judge=)"
        )
    chosen = judge if judge is not None else (found or [None])[0]
    if judge is not None and judge not in found:
        raise DataError(f"judge {judge!r} scored no harmful request here; found: {found or 'none'}")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["judge"] == chosen and row["measure"] == "attack_success":
            groups.setdefault(_label(row), []).append(row)
    mixed = {name: {r["setting"] for r in group} for name, group in groups.items()}
    twice = [name for name, settings in mixed.items() if len(settings) > 1]
    if twice:
        raise DataError(
            f"{twice[0]} stands for {len(mixed[twice[0]])} different settings (column `setting`): "
            "filter the frame to one of them, or write the difference into its column `attack`"
        )
    return {name: trials_from(group) for name, group in groups.items()}


def _label(row: Mapping[str, Any]) -> str:
    shield = f" + {row['defense']}" if row["defense"] else ""
    return f"{row['attack']} on {row['model']}{shield}"


__all__ = ["by_label", "rows_of", "trials_from"]
