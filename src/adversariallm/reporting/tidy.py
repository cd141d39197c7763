"""Tidy rows: one per run, one per step of a behavior, one per completion and judge.

The same rows feed pandas, CSV and Parquet; nothing is aggregated here and nothing is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from adversariallm.core.budget import Ledgers
from adversariallm.evaluation.facts import (
    UNDEFENDED,
    Document,
    has_queries,
    judge_view,
    setting_of,
    timing_of,
)
from adversariallm.evaluation.trials import COST_KEYS, run_costs, search_cost

Row = dict[str, Any]


def _keys(document: Document) -> Row:
    setting = setting_of(document)
    return {
        "run_id": document["run_id"],
        "setting": setting.key,
        "model": setting.model,
        "defense": setting.defense,
        "knowledge": setting.knowledge,
        "attack": setting.attack,
        "dataset": setting.dataset,
        "seed": document["config"].get("seed", 0),
    }


def _behavior(run: Mapping[str, Any]) -> Row:
    behavior = run["behavior"]
    return {
        "behavior": behavior["id"],
        "category": behavior.get("category"),
        "harmful": behavior.get("harmful", True),
    }


def run_rows(documents: Iterable[Document]) -> Iterator[Row]:
    """One row per run, with its ledgers as `<phase>_<measure>`."""
    for document in documents:
        row = _keys(document) | {
            "status": document.get("status", "done"),
            "behaviors": len(document["runs"]),
            "steps": max((len(r["steps"]) for r in document["runs"]), default=0),
            "total_time": document.get("total_time", 0.0),
            "timing": timing_of(document),
        }
        ledgers = Ledgers.from_dict(document.get("ledgers", {}))
        counted = has_queries(document)
        for phase in ("setup", "optimization", "sampling", "diagnosis", "judging"):
            used = ledgers.total(phase)
            known = counted or phase == "judging"
            row |= {
                f"{phase}_queries": used.queries if known else None,
                f"{phase}_tokens": used.tokens if known else None,
                f"{phase}_flops": used.flops if known or used.flops else None,
            }
        yield row


def step_rows(documents: Iterable[Document]) -> Iterator[Row]:
    """One row per step of an evaluated behavior."""
    for document in documents:
        keys, counted = _keys(document), has_queries(document)
        for run in document["runs"]:
            for step in run["steps"]:
                used = Ledgers.from_dict(step.get("ledgers", {}))
                yield (
                    keys
                    | _behavior(run)
                    | {
                        "step": step["step"],
                        "loss": step["loss"],
                        "completions": len(step["model_completions"]),
                        "optimization_queries": used.total("optimization").queries
                        if counted
                        else None,
                        "optimization_flops": used.total("optimization").flops,
                        "sampling_flops": used.total("sampling").flops,
                        "time_taken": step["time_taken"],
                        "flags": " ".join(step.get("flags", ())),
                    }
                )


def completion_rows(documents: Iterable[Document]) -> Iterator[Row]:
    """One row per completion and judge; without any judge, one row with an empty judge.

    `search_*` and `sampling_*` are what the behavior had cost when the step was done; empty where
    that is unknown.
    """
    for document in documents:
        keys, shared = _keys(document), search_cost(document)
        for entry, run in enumerate(document["runs"]):
            base = keys | {"entry": entry} | _behavior(run)
            search, sampling = run_costs(document, run, shared)
            for i, step in enumerate(run["steps"]):
                cost = {f"search_{k}": _known(search[k][i]) for k in COST_KEYS}
                cost |= {f"sampling_{k}": _known(sampling[k][i]) for k in COST_KEYS[:-1]}
                where = base | {"step": step["step"], "loss": step["loss"]} | cost
                for k, text in enumerate(step["model_completions"]):
                    yield from _scored(where, run["behavior"], step, k, text)


def _scored(
    where: Row, behavior: Mapping[str, Any], step: Mapping[str, Any], k: int, text: str
) -> Iterator[Row]:
    """The rows of one completion, one for each judge."""
    facts = step["completions"][k] if k < len(step.get("completions", ())) else {}
    row = where | {
        "sample": facts.get("sample", k),
        "completion": text,
        "finish_reason": facts.get("finish_reason"),
        "completion_error": facts.get("error"),
    }
    if not step["scores"]:
        unjudged = ("judge", "measure", "score", "threshold", "judge_error")
        yield row | dict.fromkeys(unjudged)
    for judge, table in sorted(step["scores"].items()):
        view = judge_view(judge)
        said = {"completion": facts.get("undefended")} if judge.endswith(UNDEFENDED) else {}
        yield (
            row
            | said
            | {
                "judge": judge,
                "measure": view.metric(behavior),
                "score": _at(table.get(view.score_key), k),
                "threshold": view.threshold,
                "judge_error": _at(table.get("error"), k),
            }
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _at(column: Any, k: int) -> Any:
    return column[k] if column is not None and k < len(column) else None
