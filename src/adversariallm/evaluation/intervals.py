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
FULL_TRUST = 5.0


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


def mean_interval(
    values: Sequence[float],
    level: float = 0.95,
    method: Method = "wilson",
    *,
    most: float = math.inf,
) -> Interval:
    """Interval for the mean of independent values in [0, 1] that are not all 0 or 1.

    No variable on [0, 1] varies more than a coin of the same mean, so `n` coins are the worst case.
    The observed variance tells how many coins the values are worth; with little to estimate it from
    (a sum close to 0 or n) it is trusted only in part, in full from five on. Student's t, which
    trusts it always, covers 44 % instead of 95 % for ten values of mean 0.02.

    Source: effective size, Korn and Graubard 1998; the partial trust is ours (docs/statistics.md).

    Args:
        values: one for each independent unit.
        level: nominal coverage.
        method: the binomial interval used with the effective size.
        most: largest effective size, e.g. the number of trials behind the values.
    """
    x = np.asarray(values, dtype=np.float64)
    n = x.size
    if n == 0 or not (x.min() >= 0 and x.max() <= 1):
        raise ValueError("a mean needs at least one value, and all of them in [0, 1]")
    mean, size = float(x.mean()), float(n)
    variance = float(x.var(ddof=1)) / n if n > 1 else 0.0
    if 0 < mean < 1 and variance > 0:
        t_ratio = stats.norm.ppf(0.5 + level / 2) / stats.t.ppf(0.5 + level / 2, n - 1)
        worth = mean * (1 - mean) / variance * float(t_ratio) ** 2
        trust = min(1.0, n * min(mean, 1 - mean) / FULL_TRUST)
        size += (min(max(worth, n), max(most, n)) - n) * trust
    interval = wilson if method == "wilson" else clopper_pearson
    return interval(min(mean * size, size), size, level)


def clustered_rate(
    clusters: Sequence[Sequence[float]], level: float = 0.95, method: Method = "wilson"
) -> Interval:
    """Interval for a rate whose trials come in clusters (samples and seeds of a behavior).

    The rate is the mean of the cluster means. One trial each gives the plain binomial interval.

    Args:
        clusters: the 0/1 values of each cluster; none empty.
        level: nominal coverage.
        method: the binomial interval used with the effective size.
    """
    if any(len(c) == 0 for c in clusters):
        raise ValueError(
            "a cluster without trials has no rate; leave it out and count it as unscored"
        )
    means = [sum(c) / len(c) for c in clusters]
    return mean_interval(means, level, method, most=sum(len(c) for c in clusters))
