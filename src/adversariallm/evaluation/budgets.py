"""Reading curves: the budget needed for a rate, the area, and how to split a budget.

What is chosen on the same behaviors that it is then reported for looks better than it is;
`best_split` therefore chooses on one part of the behaviors and reports on the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adversariallm.core.errors import ConfigError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.curves import Axis, Curve, Spend, spent
from adversariallm.evaluation.intervals import Interval, mean_interval
from adversariallm.evaluation.metrics import expected_best_of_n
from adversariallm.evaluation.success import best_so_far
from adversariallm.evaluation.trials import Floats, Trial


@dataclass(frozen=True, slots=True)
class Needed:
    """The smallest budget at which a rate is reached.

    Attributes:
        value: None where the curve never reaches it.
        low: the smallest budget that the data do not exclude; None where even the band never
            reaches it.
        high: the largest one; None where no budget seen is surely enough.
    """

    value: float | None
    low: float | None
    high: float | None


def budget_for(curve: Curve, rate: float) -> Needed:
    """The budget needed for a rate, by inverting the curve and its band.

    Args:
        curve: a success curve; a pointwise band gives a pointwise interval.
        rate: in (0, 1].
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate}: expected a share in (0, 1]")

    def first(values: Floats) -> float | None:
        reached = np.nonzero(values >= rate - 1e-12)[0]
        return float(curve.x[reached[0]]) if reached.size else None

    return Needed(first(curve.value), first(curve.high), first(curve.low))


def area(curve: Curve, limit: float | None = None) -> float | None:
    """Mean rate over all budgets from 0 to `limit`; None for an empty curve.

    Args:
        curve: a success curve; it is 0 before its first budget and holds its value between budgets.
        limit: the largest budget; that of the curve if None. Curves are comparable at equal limits
            only.
    """
    if not len(curve.x):
        return None
    end = float(curve.x[-1]) if limit is None else limit
    if end <= 0:
        return float(np.nan_to_num(curve.value[0]))
    edges = np.append(np.minimum(curve.x, end), end)
    return float(np.nansum(curve.value * np.diff(edges)) / end)


@dataclass(frozen=True, slots=True)
class Split:
    """How to spend one budget.

    Attributes:
        budget: what may be spent on one behavior.
        step: step number up to which to optimize.
        samples: answers to sample there.
        value: success on behaviors that did not take part in the choice; None where nothing is
            affordable.
        interval: of that success.
        chosen_on: success on the behaviors that did.
    """

    budget: float
    step: int | None
    samples: int
    value: float | None
    interval: Interval | None
    chosen_on: float | None


def best_split(
    trials: Sequence[Trial], budgets: Sequence[float], rng: Rng, *, axis: Axis = "flops"
) -> list[Split]:
    """The best number of optimization steps and of samples for each budget.

    A budget pays for the search up to a step and for samples of that step's input only; the chance
    that one of n samples is a hit is estimated without bias. Step and n are chosen on a random half
    of the behaviors and reported on the other, then the halves change places; the reported split is
    the one chosen on all.

    Source: Beyer et al. 2025 (arXiv 2507.04446), sampling-aware evaluation.

    Args:
        trials: with several samples at several steps.
        budgets: in units of `axis`, for one behavior.
        rng: stream that divides the behaviors.
        axis: `flops`, `queries` or `tokens`.
    """
    behaviors = sorted({t.behavior for t in trials})
    order = rng.numpy().permutation(len(behaviors))
    half = {behaviors[i] for i in order[: len(behaviors) // 2]}
    parts = (
        [t for t in trials if t.behavior in half],
        [t for t in trials if t.behavior not in half],
    )
    return [_split(trials, parts, budget, axis) for budget in budgets]


def _split(
    trials: Sequence[Trial],
    parts: tuple[Sequence[Trial], Sequence[Trial]],
    budget: float,
    axis: Axis,
) -> Split:
    chosen = _choose(trials, budget, axis)
    held_out: dict[str, list[float]] = {}
    for chooser, rest in (parts, parts[::-1]):
        plan = _choose(chooser, budget, axis)
        if plan is not None:
            for trial in rest:
                chance = _chance(trial, plan[0], budget, axis)
                held_out.setdefault(trial.behavior, []).append(chance[0] if chance else 0.0)
    if chosen is None:
        return Split(budget, None, 0, None, None, None)
    step, value, samples = chosen
    means = [float(np.mean(v)) for v in held_out.values()]
    return Split(
        budget,
        step,
        samples,
        float(np.mean(means)) if means else None,
        mean_interval(means) if means else None,
        value,
    )


def _choose(trials: Sequence[Trial], budget: float, axis: Axis) -> tuple[int, float, int] | None:
    """The step of the best mean chance, that chance, and the median number of samples."""
    best: tuple[int, float, int] | None = None
    for step in sorted({int(s) for t in trials for s in t.steps}):
        chances = [_chance(t, step, budget, axis) for t in trials]
        values = [0.0 if c is None else c[0] for c in chances]
        counts = [c[1] for c in chances if c is not None]
        mean = float(np.mean(values)) if values else 0.0
        if counts and (best is None or mean > best[1]):
            best = (step, mean, int(np.median(counts)))
    return best


def _chance(trial: Trial, step: int, budget: float, axis: Axis) -> tuple[float, int] | None:
    """Chance of a hit among the samples that the budget affords at a step, and their number."""
    at = np.nonzero(trial.steps == step)[0]
    if not at.size:
        return None
    i = int(at[0])
    known = trial.hits[i][~np.isnan(trial.hits[i])]
    made = int(trial.present[i].sum())
    before = float(trial.sampling[axis][i - 1]) if i else 0.0
    price = (float(trial.sampling[axis][i]) - before) / made if made else 0.0
    left = budget - float(trial.search[axis][i])
    if not known.size or math.isnan(left - price) or left < price:
        return None
    n = known.size if price <= 0 else min(int(left // price), known.size)
    return expected_best_of_n(known.tolist(), n), n


def unknown_cost(axis: Axis) -> str:
    """Why a cost is unknown, and what to do."""
    if axis == "seconds":
        return (
            "its seconds are unknown, as it may have shared batches with other runs; compare at "
            "flops or queries, or run with timing=exclusive in a new out="
        )
    if axis in ("queries", "tokens"):
        return f"its {axis} are unknown, as the file it was imported from does not tell them"
    return (
        f"its {axis} are unknown, as a model behind an endpoint took part, or the file it was "
        "imported from does not tell them; compare at queries or tokens"
    )


def largest_common_budget(groups: Sequence[Sequence[Trial]], axis: Axis, spend: Spend) -> float:
    """The largest budget up to which every trial's outcome is known.

    A trial that won is known for all larger budgets, also where it stopped there.

    Raises:
        ConfigError: what a trial spent on this axis is unknown.
    """
    won: list[float] = []
    lost: list[float] = []
    for trial in (t for trials in groups for t in trials if len(t.steps)):
        end = float(spent(trial, axis, spend)[-1])
        if math.isnan(end):
            raise ConfigError(f"run {trial.run_id}: {unknown_cost(axis)}")
        (won if best_so_far(trial)[-1] == 1 else lost).append(end)
    if not won and not lost:
        raise ValueError("no trial has a finished step: there is no common budget")
    return min(lost) if lost else max(won)
