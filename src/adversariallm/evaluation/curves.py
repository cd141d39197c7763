"""Success against what was spent: one rate with its interval for every budget.

A behavior counts as won from the first budget at which any of its completions so far is a known
hit. Points of one curve share their behaviors, so they are dependent; pointwise and simultaneous
bands are told apart by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adversariallm.evaluation.intervals import clustered_rate
from adversariallm.evaluation.success import best_so_far
from adversariallm.evaluation.trials import Floats, Trial

Axis = Literal["steps", "queries", "flops", "tokens", "seconds"]
Spend = Literal["search", "sampling", "total"]


@dataclass(frozen=True)
class Curve:
    """A rate at growing budgets.

    Attributes:
        axis: what `x` counts.
        spend: which ledgers `x` adds up; meaningless for steps.
        x: `[P]` budgets, ascending.
        value: `[P]` rate, NaN where nothing is scored yet.
        low: `[P]` lower end of the pointwise interval.
        high: `[P]` upper end.
        n: `[P]` scored behaviors.
    """

    axis: Axis
    spend: Spend
    x: Floats
    value: Floats
    low: Floats
    high: Floats
    n: Floats
    level: float = 0.95


def spent(trial: Trial, axis: Axis, spend: Spend) -> Floats:
    """`[S]` what the trial had spent when each step was done."""
    if axis == "steps":
        return trial.steps.astype(np.float64)
    if spend == "search":
        return trial.search[axis]
    if spend == "sampling":
        return trial.sampling[axis]
    return trial.search[axis] + trial.sampling[axis]


def value_at(trial: Trial, x: Floats, axis: Axis, spend: Spend) -> Floats:
    """`[P]` best so far at each budget: 0 before the first step is paid, NaN while unscored."""
    costs = spent(trial, axis, spend)
    if costs.size == 0:
        return np.full(len(x), np.nan)
    best = best_so_far(trial)
    reached = np.searchsorted(costs, x, side="right") - 1
    return np.where(reached < 0, 0.0, best[np.maximum(reached, 0)])


def success_curve(
    trials: Sequence[Trial],
    axis: Axis = "steps",
    *,
    spend: Spend = "total",
    level: float = 0.95,
    max_points: int = 60,
) -> Curve:
    """The share of behaviors won within each budget, with pointwise Wilson intervals.

    Args:
        trials: of one setting, metric and judge.
        axis: unit of the budget.
        spend: what counts as spent.
        level: coverage of each point's interval.
        max_points: longest curve; budgets are thinned evenly by rank, first and last kept.
    """
    marks = [spent(t, axis, spend) for t in trials if len(t.steps)]
    x = np.unique(np.concatenate(marks)) if marks else np.zeros(0)
    if len(x) > max_points:
        x = x[np.unique(np.linspace(0, len(x) - 1, max_points).round().astype(int))]
    behaviors: dict[str, list[Floats]] = {}
    for trial in trials:
        behaviors.setdefault(trial.behavior, []).append(value_at(trial, x, axis, spend))
    value, low, high, n = (np.full(len(x), np.nan) for _ in range(4))
    for i in range(len(x)):
        clusters = [
            [float(v[i]) for v in rows if not np.isnan(v[i])] for rows in behaviors.values()
        ]
        scored = [c for c in clusters if c]
        n[i] = len(scored)
        if scored:
            interval = clustered_rate(scored, level)
            value[i] = np.mean([np.mean(c) for c in scored])
            low[i], high[i] = interval.low, interval.high
    return Curve(axis, spend, x, value, low, high, n, level)
