"""What the report says about one setting: ways of counting, categories, budgets needed.

Plain tables made from `evaluation`; the page's looks are in the templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adversariallm.evaluation.budgets import area, budget_for
from adversariallm.evaluation.curves import Axis, success_curve
from adversariallm.evaluation.facts import METRIC_TITLES, Document, judges_of
from adversariallm.evaluation.intervals import Rate
from adversariallm.evaluation.metrics import harmfulness
from adversariallm.evaluation.success import When, rate
from adversariallm.evaluation.trials import Trial, trials_of
from adversariallm.reporting.tables import Column, Table
from adversariallm.reporting.text import percent, quantity

WAYS: tuple[tuple[When, str], ...] = (
    ("any", "any step"),
    ("best_loss", "step of lowest loss"),
    ("last", "last step"),
)
BUDGETS: tuple[tuple[Axis, str], ...] = (
    ("steps", "steps"),
    ("queries", "queries"),
    ("flops", "FLOPs"),
)


def setting_tables(group: Sequence[Document], *, threshold: float | None = None) -> list[Table]:
    """Tables on the runs of one setting; empty ones are left out."""
    trials: dict[str, list[Trial]] = {}
    for judge in judges_of(group):
        for trial in trials_of(group, judge, threshold=threshold):
            trials.setdefault(f"{METRIC_TITLES[trial.metric]} ({judge})", []).append(trial)
    tables = [_ways(trials), _categories(trials), _budgets(trials)]
    return [t for t in tables if t.rows]


def _ways(trials: dict[str, list[Trial]]) -> Table:
    rows = []
    for name, found in trials.items():
        mean = harmfulness(found, "last")
        row: dict[str, Any] = {"measure": name}
        for when, _ in WAYS:
            row[when] = rate(found, when)
        row["bounds"] = _bounds(row["any"])
        row["mean"] = None if mean.value is None else f"{mean.value:.2f}"
        rows.append(row)
    columns = (
        Column("measure", "measure"),
        *(Column(when, title, "rate") for when, title in WAYS),
        Column("bounds", "any step, if all unscored miss or hit"),
        Column("mean", "mean score, last step"),
    )
    return Table("Ways of counting", columns, tuple(rows))


def _bounds(found: Rate) -> str | None:
    if not found.unscored_completions or found.worst is None:
        return None
    return f"{percent(found.worst)} to {percent(found.best)}"


def _categories(trials: dict[str, list[Trial]]) -> Table:
    rows = []
    for name, found in trials.items():
        categories = sorted({t.category or "" for t in found})
        if len(categories) < 2:
            continue
        when: When = "any" if found[0].metric == "attack_success" else "last"
        for category in categories:
            part = [t for t in found if (t.category or "") == category]
            made = rate(part, when)
            rows.append(
                {
                    "measure": name,
                    "category": category or "(none)",
                    "behaviors": made.n + made.unscored,
                    "rate": made,
                }
            )
    columns = (
        Column("measure", "measure"),
        Column("category", "category"),
        Column("behaviors", "behaviors", "count"),
        Column("rate", "rate", "rate"),
    )
    return Table("By category", columns, tuple(rows))


def _budgets(trials: dict[str, list[Trial]]) -> Table:
    rows = []
    for name, found in trials.items():
        if found[0].metric != "attack_success" or max(len(t.steps) for t in found) < 2:
            continue
        for axis, title in BUDGETS:
            curve = success_curve(found, axis)
            if not len(curve.x):
                continue  # FLOPs of endpoints are unknown
            row: dict[str, Any] = {"measure": name, "budget": title}
            for share in (0.25, 0.5, 0.75):
                needed = budget_for(curve, share)
                row[f"{share}"] = (
                    f"not within {quantity(float(curve.x[-1])) if len(curve.x) else 0}"
                    if needed.value is None
                    else f"{quantity(needed.value)} [{quantity(needed.low)}, {_end(needed.high)}]"
                )
            row["area"] = area(curve)
            rows.append(row)
    columns = (
        Column("measure", "measure"),
        Column("budget", "budget"),
        *(Column(f"{s}", f"for {100 * s:.0f} %") for s in (0.25, 0.5, 0.75)),
        Column("area", "mean over the budget", "share"),
    )
    return Table("Budget needed (95 % intervals)", columns, tuple(rows))


def _end(value: float | None) -> str:
    return "more" if value is None else quantity(value)
