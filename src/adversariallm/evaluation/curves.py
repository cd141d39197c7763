"""Success against what was spent: one rate with its interval for every budget.

A behavior counts as won from the first budget at which any of its completions so far is a known
hit. A curve's band is either pointwise or holds for all budgets at once, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adversariallm.evaluation.intervals import clustered_rate
from adversariallm.evaluation.success import best_so_far
from adversariallm.evaluation.trials import Floats, Trial
from adversariallm.evaluation.uncertainty import simultaneous_level

Axis = Literal["steps", "queries", "flops", "tokens", "seconds"]
Spend = Literal["search", "sampling", "total"]
Band = Literal["pointwise", "simultaneous"]


@dataclass(frozen=True)
class Curve:
    """A rate at growing budgets.

    Attributes:
        axis: what `x` counts.
        spend: which ledgers `x` adds up; meaningless for steps.
        x: `[P]` budgets, ascending.
        value: `[P]` rate, NaN where nothing is scored yet.
        low: `[P]` lower end of the band.
        high: `[P]` upper end.
        n: `[P]` scored behaviors.
        band: whether `low` and `high` hold at each budget, or at all of them together.
    """

    axis: Axis
    spend: Spend
    x: Floats
    value: Floats
    low: Floats
    high: Floats
    n: Floats
    band: Band
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
    """`[P]` best so far at each budget: 0 before the first step is paid, NaN while unscored.

    NaN throughout where the trial's cost is unknown.
    """
    costs = spent(trial, axis, spend)
    if costs.size == 0 or np.isnan(costs).any():
        return np.full(len(x), np.nan)
    best = best_so_far(trial)
    reached = np.searchsorted(costs, x, side="right") - 1
    return np.where(reached < 0, 0.0, best[np.maximum(reached, 0)])


def success_curve(
    trials: Sequence[Trial],
    axis: Axis = "steps",
    *,
    spend: Spend = "total",
    band: Band = "pointwise",
    level: float = 0.95,
    max_points: int = 60,
) -> Curve:
    """The share of behaviors won within each budget, with a band.

    A pointwise band is made of Wilson intervals; a simultaneous one of Clopper-Pearson intervals at
    the level that makes them hold together (`simultaneous_level`). Trials whose cost is unknown are
    left out; without any other the curve is empty.

    Args:
        trials: of one setting, metric and judge.
        axis: unit of the budget.
        spend: what counts as spent.
        band: `pointwise` or `simultaneous`.
        level: coverage of the band.
        max_points: longest curve; budgets are thinned evenly by rank, first and last kept.
    """
    marks = [spent(t, axis, spend) for t in trials if len(t.steps)]
    x = np.unique(np.concatenate(marks)) if marks else np.zeros(0)
    x = x[~np.isnan(x)]
    if len(x) > max_points:
        x = x[np.unique(np.linspace(0, len(x) - 1, max_points).round().astype(int))]
    behaviors: dict[str, list[Floats]] = {}
    for trial in trials:
        behaviors.setdefault(trial.behavior, []).append(value_at(trial, x, axis, spend))
    joint = band == "simultaneous" and len(x) > 1
    local = simultaneous_level(len(behaviors), level) if joint else level
    value, low, high, n = (np.full(len(x), np.nan) for _ in range(4))
    for i in range(len(x)):
        clusters = [
            [float(v[i]) for v in rows if not np.isnan(v[i])] for rows in behaviors.values()
        ]
        scored = [c for c in clusters if c]
        n[i] = len(scored)
        if scored:
            interval = clustered_rate(scored, local, "clopper_pearson" if joint else "wilson")
            value[i] = sum(sum(c) / len(c) for c in scored) / len(scored)
            low[i], high[i] = interval.low, interval.high
    return Curve(axis, spend, x, value, low, high, n, band, level)
