"""Confidence intervals for rates and means, exact where that is possible.

Which interval covers how well at which size is measured in `docs/statistics.md`; nothing here looks
at runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Method = Literal["wilson", "clopper_pearson"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of behaviors with its interval and what could not be counted.

    Attributes:
        value: the estimate over scored behaviors; None where there are none.
        interval: None where there is no estimate.
        hits: sum of the behaviors' values (a whole number for one completion per behavior).
        n: scored behaviors.
        unscored: behaviors without any score; they are in neither `hits` nor `n`.
        unscored_completions: completions without a score, those of scored behaviors included.
        worst: the rate if every unscored completion were a miss.
        best: the rate if every unscored completion were a hit.
        method: how the interval was made.
    """

    value: float | None
    interval: Interval | None
    hits: float
    n: int
    unscored: int
    unscored_completions: int
    worst: float | None
    best: float | None
    method: str
    level: float = 0.95


def wilson(hits: float, n: float, level: float = 0.95) -> Interval:
    """Wilson's score interval; `hits` and `n` may be fractional (effective sizes).

    Source: Wilson 1927; Brown, Cai and DasGupta 2001 recommend it for small n.
    """
    _check(hits, n, level)
    z = float(stats.norm.ppf(0.5 + level / 2))
    p, z2 = hits / n, z * z
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Interval(
        0.0 if hits == 0 else max(0.0, center - half), 1.0 if hits == n else min(1.0, center + half)
    )


def clopper_pearson(hits: float, n: float, level: float = 0.95) -> Interval:
    """The exact interval by inversion of the binomial test: never covers less than `level`.

    Source: Clopper and Pearson 1934; beta quantiles, so that effective sizes are allowed.
    """
    _check(hits, n, level)
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits == n else float(stats.beta.ppf(1 - tail, hits + 1, n - hits))
    return Interval(low, high)


def _check(hits: float, n: float, level: float) -> None:
    if not n > 0:
        raise ValueError(f"an interval for n={n} trials: expected at least one")
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits in {n} trials: expected 0 to n")
    if not 0 < level < 1:
        raise ValueError(f"level={level}: expected between 0 and 1, e.g. 0.95")


def clustered_rate(
    clusters: Sequence[Sequence[float]], level: float = 0.95, method: Method = "wilson"
) -> Interval:
    """Interval for a rate whose trials come in clusters (samples and seeds of a behavior).

    The rate is the mean of the cluster means. Its variance is estimated between clusters and turned
    into an effective number of independent trials, which is never taken to be below the number of
    clusters (one trial each is the worst case) nor above the number of trials, and shrinks by a t
    quantile for few clusters.

    Source: Korn and Graubard 1998 for the effective size.

    Args:
        clusters: the 0/1 values of each cluster; none empty.
        level: nominal coverage.
        method: the binomial interval used with the effective size.
    """
    if any(len(c) == 0 for c in clusters):
        raise ValueError(
            "a cluster without trials has no rate; leave it out and count it as unscored"
        )
    means = np.array([sum(c) / len(c) for c in clusters])
    n, trials = len(means), sum(len(c) for c in clusters)
    p = float(means.mean())
    size = float(n)
    if trials > n > 1 and 0 < p < 1:
        variance = float(means.var(ddof=1)) / n
        if variance > 0:
            t_ratio = stats.norm.ppf(0.5 + level / 2) / stats.t.ppf(0.5 + level / 2, n - 1)
            size = min(max(p * (1 - p) / variance * float(t_ratio) ** 2, n), trials)
    interval = wilson if method == "wilson" else clopper_pearson
    return interval(p * size, size, level)


def bounded_mean(values: Sequence[float], level: float = 0.95) -> Interval:
    """Interval for the mean of values in [0, 1]: Student's t, cut to [0, 1].

    Without spread (all values equal) it falls back on Wilson's width for that many trials, because
    a zero-width interval would claim certainty.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise ValueError("an interval for the mean of no values: expected at least one")
    mean = float(x.mean())
    if x.size == 1 or float(x.std(ddof=1)) == 0.0:
        return wilson(mean * x.size, x.size, level)
    half = (
        float(stats.t.ppf(0.5 + level / 2, x.size - 1)) * float(x.std(ddof=1)) / math.sqrt(x.size)
    )
    return Interval(max(0.0, mean - half), min(1.0, mean + half))
