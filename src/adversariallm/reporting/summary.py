"""The summary table: one row per setting, judge and metric, with its cost.

Runs are put into one row only where everything but items and seed is equal; what could not be
scored has its own column and is never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adversariallm.core.budget import Ledgers, known_sum
from adversariallm.evaluation.facts import (
    METRIC_TITLES,
    Document,
    Metric,
    Setting,
    distinct_labels,
    group_by_setting,
    has_own_seconds,
    has_queries,
    judge_view,
    judges_of,
    timing_of,
)
from adversariallm.evaluation.success import When, rate
from adversariallm.evaluation.trials import Trial, trials_of
from adversariallm.reporting.tables import Column, Table
from adversariallm.reporting.text import percent

COLUMNS = (
    Column("model", "model"),
    Column("defense", "defense"),
    Column("attack", "attack"),
    Column("dataset", "dataset"),
    Column("measure", "measure"),
    Column("judge", "judge"),
    Column("behaviors", "behaviors", "count"),
    Column("steps", "steps", "count"),
    Column("rate", "rate [95 %]", "rate"),
    Column("unscored", "unscored", "count"),
    Column("queries", "queries", "count"),
    Column("flops", "FLOPs", "count"),
    Column("seconds", "seconds", "seconds"),
)
EXTRA = (
    Column("runs", "runs", "count"),
    Column("seeds", "seeds", "count"),
    Column("threshold", "threshold", "number"),
    Column("when", "steps counted"),
    Column("rate_last", "rate at the last step", "rate"),
    Column("queries_search", "search queries", "count"),
    Column("queries_sampling", "sampling queries", "count"),
    Column("flops_search", "search FLOPs", "count"),
    Column("flops_sampling", "sampling FLOPs", "count"),
    Column("flops_judging", "judging FLOPs", "count"),
    Column("answers", "answers", "count"),
    Column("setting", "setting"),
)


def summarize(documents: Iterable[Document], *, threshold: float | None = None) -> Table:
    """Summarize joined run documents.

    Args:
        documents: as `store.read` gives them.
        threshold: overrides every judge's own threshold.

    Returns:
        One row per setting, judge and metric. Cost columns are sums over the runs of the row:
        search and sampling together, judging apart.
    """
    documents = list(documents)
    groups = group_by_setting(documents)
    labels = distinct_labels([setting for setting, _ in groups])
    rows: list[Mapping[str, Any]] = []
    for setting, group in groups:
        rows.extend(_rows(setting, group, labels[setting.key], threshold))
    columns = tuple(c for c in COLUMNS if c.key != "defense" or any(r["defense"] for r in rows))
    return Table("Summary", columns, tuple(rows), _notes(documents, rows), EXTRA)


def _rows(
    setting: Setting, group: Sequence[Document], label: str, threshold: float | None
) -> list[dict[str, Any]]:
    base = {
        "model": setting.model,
        "defense": setting.defense,
        "attack": label,
        "dataset": setting.dataset,
        "setting": setting.key,
        **cost_of(group),
    }
    rows = []
    for judge in judges_of(group):
        by_metric: dict[Metric, list[Trial]] = {}
        for trial in trials_of(group, judge, threshold=threshold):
            by_metric.setdefault(trial.metric, []).append(trial)
        for metric, trials in sorted(by_metric.items()):
            rows.append(base | _measured(metric, trials))
    if not rows:
        judged = judges_of(group)
        why = f"nothing that {', '.join(judged)} can measure" if judged else "not judged yet"
        rows.append(
            base | {"measure": why, "judge": None, "rate": None, "unscored": _completions(group)}
        )
    return rows


def _measured(metric: Metric, trials: Sequence[Trial]) -> dict[str, Any]:
    when: When = "any" if metric == "attack_success" else "last"
    view = trials[0].judge
    return {
        "measure": METRIC_TITLES[metric],
        "metric": metric,
        "judge": view.id,
        "threshold": view.threshold,
        "when": when,
        "rate": rate(trials, when),
        "rate_last": rate(trials, "last"),
        "unscored": sum(t.unscored for t in trials),
        "answers": sum(t.completions for t in trials),
    }


def cost_of(group: Sequence[Document]) -> dict[str, Any]:
    """Counts and sums of a group of runs."""
    ledgers = [Ledgers.from_dict(d.get("ledgers", {})) for d in group]
    search = [x.search() for x in ledgers]
    sampling = [x.total("sampling") for x in ledgers]
    judging = [x.total("judging") for x in ledgers]
    runs = [r for d in group for r in d["runs"]]
    counted = all(map(has_queries, group))
    queries = [
        int(sum(u.queries for u in used)) if counted else None for used in (search, sampling)
    ]
    flops = [known_sum(*(u.flops for u in used)) for used in (search, sampling, judging)]
    return {
        "runs": len(group),
        "seeds": len({d["config"].get("seed", 0) for d in group}),
        "behaviors": len({r["behavior"]["id"] for r in runs}),
        "steps": max((len(r["steps"]) for r in runs), default=0),
        "queries": known_sum(*queries),
        "queries_search": queries[0],
        "queries_sampling": queries[1],
        "flops": known_sum(*flops[:2]),
        "flops_search": flops[0],
        "flops_sampling": flops[1],
        "flops_judging": flops[2],
        "seconds": _seconds(group),
    }


def _seconds(group: Sequence[Document]) -> float | None:
    """Seconds that no other run can have stretched; None where runs may have shared batches.

    Runs that share batches each book the whole wait, so their sum says nothing.
    """
    if all(timing_of(d) == "exclusive" for d in group):
        return sum(float(d.get("total_time", 0.0)) for d in group)
    if all(has_own_seconds(d) for d in group):
        steps = [s for d in group for r in d["runs"] for s in r["steps"]]
        return sum(float(s.get("time_taken", 0.0)) for s in steps)
    return None


def _completions(group: Sequence[Document]) -> int:
    return sum(len(s["model_completions"]) for d in group for r in d["runs"] for s in r["steps"])


def _notes(documents: Sequence[Document], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if not documents:
        return ("no runs",)
    notes = [
        "attack success: any step so far; samples and seeds cluster by behavior; intervals: "
        "Wilson, 95 %",
        "queries and FLOPs: search and sampling, summed over the runs; judging is apart",
    ]
    if any(row["flops"] is None for row in rows):
        notes.append(
            "FLOPs: a dash where a model behind an endpoint took part, or an imported file does "
            "not tell them; they are unknown"
        )
    if any(row["queries"] is None for row in rows):
        notes.append(
            "queries: a dash where an imported file does not tell them; FLOPs beside a "
            "dash are those of the file, of the search alone"
        )
    if any(row["seconds"] is None for row in rows):
        notes.append(
            "seconds: a dash where runs may have shared batches and each books the whole wait; "
            "run with timing=exclusive in a new out= to measure them"
        )
    shared = any(timing_of(d) != "exclusive" for d in documents)
    if shared and any(row["seconds"] is not None for row in rows):
        notes.append("seconds of attacks that run alone: search only, unless timing=exclusive")
    views = {row["judge"]: row["threshold"] for row in rows if row["judge"]}
    if views:
        shown = ", ".join(
            f"{j}: {judge_view(j).score_key} >= {t:g}" for j, t in sorted(views.items())
        )
        notes.append(f"success threshold: {shown}")
    bounds = [
        f"{row['attack']} on {row['model']}, {row['dataset']}, {row['judge']}: between "
        f"{percent(row['rate'].worst)} and {percent(row['rate'].best)} whatever the unscored are"
        for row in rows
        if row["rate"] is not None and row["unscored"] and row["rate"].worst is not None
    ]
    stopped = sum(1 for d in documents if d.get("status", "done") != "done")
    if stopped:
        notes.append(f"{stopped} of {len(documents)} runs stopped early (see status)")
    return (*notes, *bounds)
