"""Figures from frames: each takes `load_results(...)` rows, perhaps filtered, and gives an axis.

A frame is a pandas frame or any iterable of row dictionaries. Without `ax` a new figure is made,
outside pyplot's state. The drawing itself is `reporting.figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adversariallm.core.rng import Rng
from adversariallm.evaluation.budgets import best_split
from adversariallm.evaluation.curves import Axis, Spend, success_curve
from adversariallm.evaluation.success import When, rate
from adversariallm.reporting import figures
from adversariallm.reporting.frames import by_label, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PHASES = ("optimization", "sampling")


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    made: Axes = Figure(figsize=(3.4, 2.4), layout="constrained").subplots()
    return made


def plot_success_by_budget(
    completions: Any,
    axis: Axis = "steps",
    *,
    spend: Spend = "total",
    judge: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Attack success against steps, queries, tokens, FLOPs or seconds, with simultaneous bands.

    Args:
        completions: `load_results(...).completions`.
        axis: what the budget counts; costs that are unknown are left out.
        spend: `search`, `sampling` or both.
        judge: the judge to read; the only one of the frame if None.
        ax: where to draw.

    Raises:
        DataError: a column is missing, or several judges or settings would be mixed.
    """
    curves = {
        label: success_curve(trials, axis, spend=spend, band="simultaneous")
        for label, trials in by_label(completions, judge).items()
    }
    drawn = {label: curve for label, curve in curves.items() if len(curve.x)}
    return figures.success_by_budget(drawn, _axes(ax))


def plot_success_by_samples(
    completions: Any, *, judge: str | None = None, ax: Axes | None = None
) -> Axes:
    """Chance that one of k samples is a hit (unbiased), against k."""
    ax = _axes(ax)
    for label, trials in by_label(completions, judge).items():
        figures.success_by_samples(trials, ax, label=label)
    return _legend(ax)


def plot_harmfulness(completions: Any, *, judge: str | None = None, ax: Axes | None = None) -> Axes:
    """Share of answers at the last step that score at or above each value."""
    ax = _axes(ax)
    for label, trials in by_label(completions, judge).items():
        figures.harmfulness_over_samples(trials, ax, label=label)
    return _legend(ax)


def plot_rates(
    completions: Any, *, when: When = "any", judge: str | None = None, ax: Axes | None = None
) -> Axes:
    """Attack success of every attack, model and defense, with its interval."""
    found = by_label(completions, judge).items()
    return figures.rates([(label, rate(trials, when)) for label, trials in found], _axes(ax))


def plot_best_split(
    completions: Any,
    budgets: Sequence[float],
    axis: Axis = "flops",
    *,
    seed: int = 0,
    judge: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Success under the best split of each budget between search steps and samples.

    Chosen on one half of the behaviors and shown for the other; see `evaluation.budgets`.

    Args:
        completions: `load_results(...).completions`, several samples at several steps.
        budgets: for one behavior, in units of `axis`.
        axis: `flops`, `queries` or `tokens`.
        seed: divides the behaviors.
        judge: the judge to read; the only one of the frame if None.
        ax: where to draw.
    """
    ax = _axes(ax)
    for label, trials in by_label(completions, judge).items():
        stream = Rng.root(seed).child("best_split")
        splits = [s for s in best_split(trials, budgets, stream, axis=axis) if s.value is not None]
        x = [s.budget for s in splits]
        (line,) = ax.plot(x, [100 * (s.value or 0) for s in splits], "o-", ms=2, label=label)
        low = [100 * s.interval.low for s in splits if s.interval]
        high = [100 * s.interval.high for s in splits if s.interval]
        ax.fill_between(x, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    ax.set(xlabel=f"{figures.AXIS_TITLES[axis]} for a behavior", ylabel="attack success (%)")
    ax.set(xscale="log", ylim=(0, 100))
    return _legend(ax)


def plot_cost(runs: Any, measure: str = "flops", *, ax: Axes | None = None) -> Axes:
    """What search and sampling cost a behavior on average, by attack.

    Args:
        runs: `load_results(...).runs`.
        measure: `queries`, `tokens` or `flops`; runs whose cost is unknown are left out.
        ax: where to draw.

    Raises:
        DataError: a column is missing.
    """
    ax = _axes(ax)
    names = [f"{phase}_{measure}" for phase in _PHASES]
    rows = [r for r in rows_of(runs, ("attack", "behaviors", *names)) if not _unknown(r, names)]
    attacks = list(dict.fromkeys(str(r["attack"]) for r in rows))
    left = np.zeros(len(attacks))
    for phase, name in zip(_PHASES, names, strict=True):
        of = {a: [r for r in rows if r["attack"] == a] for a in attacks}
        mean = np.array(
            [sum(r[name] for r in of[a]) / sum(r["behaviors"] for r in of[a]) for a in attacks]
        )
        ax.barh(range(len(attacks)), mean, left=left, label=phase)
        left = left + mean
    ax.set_yticks(range(len(attacks)), attacks)
    ax.set(xlabel=f"{figures.AXIS_TITLES.get(measure, measure)} for a behavior")  # type: ignore[call-overload]
    return _legend(ax)


def _unknown(row: dict[str, Any], names: Sequence[str]) -> bool:
    return any(row[n] is None or np.isnan(row[n]) for n in names)


def _legend(ax: Axes) -> Axes:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return ax
