"""Where uncertainty comes from: samples, seeds and behaviors; whole curves; and the judge itself.

Closed forms where they exist; the bootstrap draws from the stream it is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from adversariallm.core.rng import Rng
from adversariallm.evaluation.intervals import Interval, clopper_pearson, wilson
from adversariallm.evaluation.trials import Floats

Clusters = Sequence[Sequence[Sequence[float]]]
"""Behaviors, each with its seeds, each with its samples."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance components of a mean over behaviors.

    Attributes:
        value: mean over behaviors of the mean over seeds of the mean over samples.
        error: standard error for new behaviors, seeds and samples alike.
        sampling_error: the part of `error` that more samples per seed would remove.
        seed_error: the part that more seeds would remove (samples included).
    """

    value: float
    error: float
    sampling_error: float
    seed_error: float


def spread(clusters: Clusters) -> Spread:
    """Variance components by the nested analysis of variance, for unequal sizes.

    NaN stands where a level has no replication (one sample everywhere, one seed everywhere, one
    behavior).
    """
    seed_means = [[float(np.mean(s)) for s in seeds] for seeds in clusters]
    means = [float(np.mean(m)) for m in seed_means]
    n = len(means)
    if n == 0:
        raise ValueError("the spread of no behaviors: expected at least one")
    within = _pooled([s for seeds in clusters for s in seeds])
    between = _pooled(seed_means)
    samples = sum(within / len(s) / len(seeds) ** 2 for seeds in clusters for s in seeds) / n**2
    seeds = sum(between / len(m) for m in seed_means) / n**2
    total = float(np.var(means, ddof=1)) / n if n > 1 else math.nan
    return Spread(float(np.mean(means)), math.sqrt(total), math.sqrt(samples), math.sqrt(seeds))


def _pooled(groups: Sequence[Sequence[float]]) -> float:
    """Pooled variance within groups; NaN where no group has two values."""
    squares = sum(float(np.var(g)) * len(g) for g in groups)
    freedom = sum(len(g) - 1 for g in groups)
    return squares / freedom if freedom else math.nan


def hierarchical_bootstrap(
    clusters: Clusters, rng: Rng, *, resamples: int = 2000, level: float = 0.95
) -> Interval:
    """Percentile interval for the mean; behaviors, then seeds, then samples are drawn again.

    Undercovers below about 20 behaviors and near 0 and 1 (see docs/statistics.md); `clustered_rate`
    does not.

    Source: Davison and Hinkley 1997, section 3.8; Cameron, Gelbach and Miller 2008.

    Args:
        clusters: behaviors, each with its seeds, each with its samples.
        rng: stream of the draws.
        resamples: bootstrap repetitions.
        level: nominal coverage.
    """
    generator = rng.numpy()
    n = len(clusters)
    drawn = generator.integers(n, size=(resamples, n))
    # One fresh value per (repetition, slot): a behavior's mean under resampled seeds and samples.
    values = np.empty((resamples, n))
    for b, seeds in enumerate(clusters):
        places = np.nonzero(drawn == b)
        values[places] = _resampled_means(seeds, len(places[0]), generator)
    means = values.mean(axis=1)
    tail = (1 - level) / 2
    return Interval(float(np.quantile(means, tail)), float(np.quantile(means, 1 - tail)))


def _resampled_means(
    seeds: Sequence[Sequence[float]], times: int, generator: np.random.Generator
) -> Floats:
    picked = generator.integers(len(seeds), size=(times, len(seeds)))
    means = np.empty(picked.shape)
    for s, samples in enumerate(seeds):
        places = np.nonzero(picked == s)
        x = np.asarray(samples, dtype=np.float64)
        means[places] = x[generator.integers(x.size, size=(len(places[0]), x.size))].mean(axis=1)
    out: Floats = means.mean(axis=1)
    return out


@cache
def simultaneous_level(n: int, level: float = 0.95) -> float:
    """The pointwise level at which Clopper-Pearson intervals cover a whole distribution of n draws.

    A success curve is the empirical distribution of the budget at which a behavior is first won, so
    one number, depending on `n` alone, makes pointwise intervals simultaneous ("equal local
    levels"). It is found by simulating order statistics of the uniform distribution with a fixed
    stream.

    Source: Aldor-Noiman et al. 2013, The American Statistician 67(4).
    """
    if n < 1:
        raise ValueError(f"n={n} behaviors: expected at least one")
    repeats = max(2000, min(20_000, 2_000_000 // n))
    uniforms = np.sort(Rng.root(0).child("simultaneous", n).numpy().random((repeats, n)), axis=1)
    rank = np.arange(1, n + 1)
    below = stats.beta.cdf(uniforms, rank, n - rank + 1)
    smallest = 2 * np.minimum(below, 1 - below).min(axis=1)
    return float(1 - np.quantile(smallest, 1 - level))


def simultaneous_band(value: Floats, n: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Lower and upper ends that hold at all budgets together with probability `level`.

    Args:
        value: `[P]` rates of one monotone curve over the same behaviors.
        n: number of behaviors.
        level: simultaneous coverage.
    """
    local = simultaneous_level(n, level)
    ends = [clopper_pearson(min(max(float(v), 0.0), 1.0) * n, n, local) for v in value]
    return np.array([e.low for e in ends]), np.array([e.high for e in ends])


@dataclass(frozen=True, slots=True)
class JudgeQuality:
    """How a judge did on answers with known labels.

    Attributes:
        hits: truly harmful answers that it called harmful, out of `harmful`.
        correct_rejections: harmless answers that it called harmless, out of `harmless`.
    """

    hits: int
    harmful: int
    correct_rejections: int
    harmless: int


@dataclass(frozen=True, slots=True)
class Corrected:
    """A rate freed of the judge's known errors.

    Attributes:
        value: estimate, cut to [0, 1].
        cut: whether the estimate had to be cut, which means that judge and data do not fit well.
    """

    value: float
    interval: Interval
    cut: bool


def correct_for_judge(
    hits: float, n: float, quality: JudgeQuality, level: float = 0.95
) -> Corrected:
    """True rate behind a judge's rate, with the uncertainty of its own error rates propagated.

    Source: estimate, Rogan and Gladen 1978; interval, Lang and Reiczigel 2014 (Preventive
    Veterinary Medicine 113).

    Args:
        hits: answers that the judge called harmful.
        n: answers judged, or the effective number of them.
        quality: the judge's counts on labelled answers.
        level: nominal coverage.

    Raises:
        ValueError: the judge is no better than chance on the labelled answers, so nothing can be
            corrected.
    """
    wilson(hits, n, level)  # checks the counts
    if quality.harmful < 1 or quality.harmless < 1:
        raise ValueError("correcting needs labelled answers of both kinds, harmful and harmless")
    z = float(stats.norm.ppf(0.5 + level / 2))
    se, sp = quality.hits / quality.harmful, quality.correct_rejections / quality.harmless
    n_se, n_sp, n_p = quality.harmful + 2, quality.harmless + 2, n + z * z
    se_, sp_ = (quality.hits + 1) / n_se, (quality.correct_rejections + 1) / n_sp
    youden = se_ + sp_ - 1
    if se + sp <= 1 or youden <= 0:
        raise ValueError(
            f"a judge with sensitivity {se:.2f} and specificity {sp:.2f} is no better than chance: "
            "its rates cannot be corrected"
        )
    raw = (hits / n + sp - 1) / (se + sp - 1)
    p_ = (hits + z * z / 2) / n_p
    center = (p_ + sp_ - 1) / youden
    v_se, v_sp = se_ * (1 - se_) / n_se, sp_ * (1 - sp_) / n_sp
    shift = 2 * z * z * (center * v_se - (1 - center) * v_sp)
    half = z / youden * math.sqrt(p_ * (1 - p_) / n_p + (1 - center) ** 2 * v_sp + center**2 * v_se)
    interval = Interval(
        min(max(center + shift - half, 0.0), 1.0), min(max(center + shift + half, 0.0), 1.0)
    )
    return Corrected(min(max(raw, 0.0), 1.0), interval, not 0 <= raw <= 1)
