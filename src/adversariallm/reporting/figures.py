"""Figures for papers: one function per kind, each takes data and an axis and returns the axis.

They draw on the axis that they are given and save nothing; `write_figures` makes the usual set as
PDF and SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adversariallm.evaluation.curves import Axis, Curve, success_curve
from adversariallm.evaluation.facts import Document, distinct_labels, group_by_setting, judges_of
from adversariallm.evaluation.intervals import Rate
from adversariallm.evaluation.metrics import success_at
from adversariallm.evaluation.sensitivity import Agreement, agreement
from adversariallm.evaluation.trials import Trial, trials_of
from adversariallm.reporting.formats._common import safe_file_name
from adversariallm.reporting.summary import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS_TITLES: Mapping[Axis, str] = {
    "steps": "step",
    "queries": "queries",
    "flops": "FLOPs",
    "tokens": "tokens",
    "seconds": "seconds of search",
}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "adversariallm",
}


def success_by_budget(curves: Mapping[str, Curve], ax: Axes) -> Axes:
    """Success against budget with bands; logarithmic for everything but steps.

    Args:
        curves: by legend text, all over one axis.
        ax: where to draw.
    """
    for label, curve in curves.items():
        keep = ~np.isnan(curve.value)
        if curve.axis != "steps":
            keep &= curve.x > 0
        if not keep.any():
            continue  # nothing was scored
        x, y = curve.x[keep], 100 * curve.value[keep]
        low, high = 100 * curve.low[keep], 100 * curve.high[keep]
        if len(x) == 1:
            errors = [[float(y[0] - low[0])], [float(high[0] - y[0])]]
            ax.errorbar(x, y, yerr=errors, fmt="o", capsize=2, label=label)
            continue
        (line,) = ax.step(x, y, where="post", label=label)
        ax.fill_between(x, low, high, step="post", alpha=0.15, color=line.get_color(), linewidth=0)
    first = next(iter(curves.values()), None)
    if first is not None and first.axis != "steps":
        ax.set_xscale("log")
    ax.set(
        xlabel=AXIS_TITLES[first.axis] if first else "", ylabel="attack success (%)", ylim=(0, 100)
    )
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return ax


def harmfulness_over_samples(
    trials: Sequence[Trial], ax: Axes, *, label: str | None = None
) -> Axes:
    """Distribution of the scores of all samples at the last step, as a survival curve."""
    values = [t.scores[-1][t.present[-1] & ~np.isnan(t.scores[-1])] for t in trials if len(t.steps)]
    x = np.sort(np.concatenate(values)) if values else np.zeros(0)
    if len(x):
        share = 100 * (1 - np.arange(len(x)) / len(x))
        ax.step(np.append(0, x), np.append(100, share), where="pre", label=label)
    ax.set(xlabel="score", ylabel="answers at or above (%)", xlim=(0, 1), ylim=(0, 100))
    return ax


def success_by_samples(trials: Sequence[Trial], ax: Axes, *, label: str | None = None) -> Axes:
    """Chance that one of k samples is a hit, for k up to what every behavior has."""
    counts = [int((~np.isnan(t.hits)).any(axis=0).sum()) for t in trials if len(t.steps)]
    ks = list(range(1, min(counts, default=0) + 1))
    found = [success_at(trials, k) for k in ks]
    points = [(k, f) for k, f in zip(ks, found, strict=True) if f.value is not None and f.interval]
    if points:
        x = [k for k, _ in points]
        ax.plot(x, [100 * (f.value or 0) for _, f in points], marker="o", markersize=2, label=label)
        ax.fill_between(
            x,
            [100 * f.interval.low for _, f in points if f.interval],
            [100 * f.interval.high for _, f in points if f.interval],
            alpha=0.15,
            linewidth=0,
        )
    ax.set(xlabel="samples", ylabel="success at k (%)", ylim=(0, 100))
    return ax


def rates(rows: Sequence[tuple[str, Rate]], ax: Axes) -> Axes:
    """Rates with intervals, one line each, first on top."""
    for i, (_, rate) in enumerate(rows):
        if rate.value is not None and rate.interval is not None:
            y = len(rows) - 1 - i
            ax.plot([100 * rate.interval.low, 100 * rate.interval.high], [y, y], color=f"C{i % 10}")
            ax.plot([100 * rate.value], [y], "o", color=f"C{i % 10}")
    ax.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    ax.set(xlim=(0, 100), xlabel="%")
    return ax


def safety_against_utility(points: Mapping[str, tuple[Rate, Rate]], ax: Axes) -> Axes:
    """One point per model: robustness (1 - attack success) against usefulness, both with intervals.

    Args:
        points: by name, the rate of attack success and a rate of which more is better.
        ax: where to draw.
    """
    for name, (attack, useful) in points.items():
        if (
            attack.value is None
            or useful.value is None
            or not attack.interval
            or not useful.interval
        ):
            continue
        x, y = 100 * useful.value, 100 * (1 - attack.value)
        horizontal = [[x - 100 * useful.interval.low], [100 * useful.interval.high - x]]
        vertical = [[y - 100 * (1 - attack.interval.high)], [100 * (1 - attack.interval.low) - y]]
        ax.errorbar([x], [y], xerr=horizontal, yerr=vertical, fmt="o", capsize=2, label=name)
    ax.set(xlabel="usefulness (%)", ylabel="attacks withstood (%)", xlim=(0, 100), ylim=(0, 100))
    if points:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return ax


def judge_agreement(pairs: Sequence[Agreement], ax: Axes) -> Axes:
    """Share of equal verdicts of every two judges, as a labelled matrix."""
    names = list(dict.fromkeys(n for p in pairs for n in (p.a, p.b)))
    matrix = np.full((len(names), len(names)), np.nan)
    np.fill_diagonal(matrix, 100.0)
    for p in pairs:
        i, j = names.index(p.a), names.index(p.b)
        matrix[i, j] = matrix[j, i] = np.nan if p.share is None else 100 * p.share
    ax.imshow(matrix, vmin=0, vmax=100, cmap="Blues")
    for (i, j), value in np.ndenumerate(matrix):
        text = "-" if np.isnan(value) else f"{value:.0f}"
        ax.text(j, i, text, ha="center", va="center", color="white" if value > 60 else "black")
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
    ax.set_yticks(range(len(names)), names)
    ax.grid(visible=False)
    return ax


def write_figures(
    documents: Sequence[Document],
    folder: Path,
    *,
    threshold: float | None = None,
    axes: Sequence[Axis] = ("steps", "queries", "flops"),
) -> list[Path]:
    """Write PDF and SVG: curves by data set and judge, all rates, agreement of the judges."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, Figure]] = []

    def new(name: str, height: float = 2.4, width: float = 3.4) -> Any:
        figure = Figure(figsize=(width, height), layout="constrained")
        drawn.append((name.replace("_", "-"), figure))
        return figure.subplots()

    with mpl.rc_context(STYLE):
        for (dataset, judge), panels in _panels(documents, threshold).items():
            for axis in axes:
                curves = {n: success_curve(t, axis, band="simultaneous") for n, t in panels.items()}
                if any(len(curve.x) for curve in curves.values()):  # FLOPs may be unknown
                    success_by_budget(curves, new(f"success-by-{axis}-{dataset}-{judge}"))
        rows = [
            (
                f"{r['attack']} on {r['model']}{' + ' + r['defense'] if r['defense'] else ''}, "
                f"{r['dataset']}: {r['measure']}",
                r["rate"],
            )
            for r in summarize(documents, threshold=threshold).rows
            if r["rate"] is not None
        ]
        if rows:
            rates(rows, new("rates", 0.6 + 0.22 * len(rows), 7.0))
        pairs = agreement(documents)
        if pairs:
            judge_agreement(pairs, new("judge-agreement", 3.0))
        paths = []
        for name, figure in drawn:
            for ending in ("pdf", "svg"):
                path = folder / f"{safe_file_name(name)}.{ending}"
                figure.savefig(
                    path, metadata={"CreationDate": None} if ending == "pdf" else {"Date": None}
                )
                paths.append(path)
    return paths


def _panels(
    documents: Sequence[Document], threshold: float | None
) -> dict[tuple[str, str], dict[str, list[Trial]]]:
    """(data set, judge) -> legend -> trials of attack success."""
    groups = group_by_setting(documents)
    labels = distinct_labels([s for s, _ in groups])
    panels: dict[tuple[str, str], dict[str, list[Trial]]] = {}
    for setting, group in groups:
        shield = f" + {setting.defense}" if setting.defense else ""
        name = f"{labels[setting.key]} on {setting.model}{shield}"
        for judge in judges_of(group):
            trials = trials_of(group, judge, threshold=threshold)
            kept = [t for t in trials if t.metric == "attack_success"]
            if kept:
                panels.setdefault((setting.dataset, judge), {})[name] = kept
    return panels
