"""Agreement of a judge with labels: error rates with intervals, kappa, calibration.

Rows without a score are counted apart and never as a label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Agreement", "Bin", "Rate", "agreement", "wilson"]

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate with its 95 % Wilson interval; None where nothing was counted."""

    hits: int
    total: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the calibration curve: scores against the share of positive labels."""

    low: float
    high: float
    mean_score: float
    positive: Rate


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge against labels.

    Attributes:
        scored: rows with a score.
        unscored: rows without one.
        agree: rows whose thresholded score equals the label.
        false_positive: negative rows called positive.
        false_negative: positive rows called negative.
        kappa: Cohen's kappa, None when chance agreement is total.
        brier: mean squared difference between score and label.
        calibration: equal-width bins that hold rows.
    """

    scored: int
    unscored: int
    agree: Rate
    false_positive: Rate
    false_negative: Rate
    kappa: float | None
    brier: float | None
    calibration: tuple[Bin, ...]


def wilson(hits: int, total: int) -> Rate:
    """Return a rate with its 95 % Wilson score interval.

    Source: Wilson 1927, Journal of the American Statistical Association 22.
    """
    if total == 0:
        return Rate(hits, total, None, None, None)
    share = hits / total
    spread = _Z95**2 / total
    center = (share + spread / 2) / (1 + spread)
    half = _Z95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    low = 0.0 if hits == 0 else max(0.0, center - half)
    high = 1.0 if hits == total else min(1.0, center + half)
    return Rate(hits, total, share, low, high)


def agreement(
    scores: Sequence[float | None],
    labels: Sequence[bool],
    *,
    threshold: float = 0.5,
    bins: int = 10,
) -> Agreement:
    """Compare scores with labels.

    Args:
        scores: in [0, 1], None for unscored rows.
        labels: true for positive rows.
        threshold: a score at or above it is positive.
        bins: number of equal-width calibration bins.

    Raises:
        ValueError: the lengths differ.
    """
    if len(scores) != len(labels):
        raise ValueError(f"{len(scores)} scores for {len(labels)} labels; give one label per row")
    pairs = [(s, bool(y)) for s, y in zip(scores, labels, strict=True) if s is not None]
    # A published threshold such as rating 10 of 10 must not be missed by rounding.
    calls = [(score >= threshold - 1e-9, label) for score, label in pairs]
    negatives = [call for call, label in calls if not label]
    positives = [call for call, label in calls if label]
    hits = sum(call == label for call, label in calls)
    return Agreement(
        scored=len(pairs),
        unscored=len(scores) - len(pairs),
        agree=wilson(hits, len(pairs)),
        false_positive=wilson(sum(negatives), len(negatives)),
        false_negative=wilson(len(positives) - sum(positives), len(positives)),
        kappa=_kappa(calls),
        brier=sum((s - y) ** 2 for s, y in pairs) / len(pairs) if pairs else None,
        calibration=_calibration(pairs, bins),
    )


def _kappa(calls: Sequence[tuple[bool, bool]]) -> float | None:
    """Return Cohen's kappa of two binary raters (Cohen 1960)."""
    total = len(calls)
    if total == 0:
        return None
    observed = sum(call == label for call, label in calls) / total
    called = sum(call for call, _ in calls) / total
    labeled = sum(label for _, label in calls) / total
    chance = called * labeled + (1 - called) * (1 - labeled)
    return None if chance >= 1 else (observed - chance) / (1 - chance)


def _calibration(pairs: Sequence[tuple[float, bool]], bins: int) -> tuple[Bin, ...]:
    """Return the bins that hold rows; the last one includes 1."""
    grouped: dict[int, list[tuple[float, bool]]] = {}
    for score, label in pairs:
        grouped.setdefault(min(bins - 1, int(score * bins)), []).append((score, label))
    return tuple(
        Bin(
            low=index / bins,
            high=(index + 1) / bins,
            mean_score=sum(score for score, _ in rows) / len(rows),
            positive=wilson(sum(label for _, label in rows), len(rows)),
        )
        for index, rows in sorted(grouped.items())
    )
