"""Does B do better than A? A paired answer over the same behaviors, or a refusal that says why.

Two things are comparable when nothing else differs: same items, judge, threshold, decoding, budget,
and for two attacks the same model. Differences in anything but what is compared must be allowed by
name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.budgets import unknown_cost
from adversariallm.evaluation.curves import Axis, Spend, spent, value_at
from adversariallm.evaluation.facts import (
    Document,
    Setting,
    differences,
    judge_view,
    judges_of,
    setting_of,
)
from adversariallm.evaluation.intervals import Interval, wilson
from adversariallm.evaluation.success import When, outcomes
from adversariallm.evaluation.trials import Floats, Trial, trials_of

Subject = Literal["attack", "models", "defense"]
SUBJECTS: tuple[Subject, ...] = ("attack", "models", "defense")
BELONGS_TO: Mapping[Subject, tuple[str, ...]] = {
    "attack": ("helpers", "assets", "judge"),
    "defense": ("helpers", "assets", "knowledge"),
}
EXACT_UP_TO = 16


@dataclass(frozen=True, slots=True)
class At:
    """A budget at which both sides are read: success within it."""

    axis: Axis
    budget: float
    spend: Spend = "total"


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A over the behaviors that both have.

    Attributes:
        rate_a: mean over the paired behaviors.
        rate_b: the same for B.
        difference: `rate_b - rate_a`.
        interval: of the difference, paired.
        p_value: exact or permutation test that flips the sign of each behavior's difference.
        p_adjusted: after Holm's correction over the comparisons made together; equal to `p_value`
            for one.
        test: which test.
        effect: Cohen's h of the two rates.
        pairs: behaviors compared.
        only_a: behaviors that only A has (or has scored), `only_b` likewise.
        needed: behaviors needed to see the observed difference with 80 % power at 5 %; None for no
            difference.
        allowed: differences in the settings that were allowed.
        at: the budget at which both sides were read, if any.
    """

    name_a: str
    name_b: str
    metric: str
    judge: str
    threshold: float
    rate_a: float
    rate_b: float
    difference: float
    interval: Interval
    p_value: float
    p_adjusted: float
    test: str
    effect: float
    pairs: int
    only_a: int
    only_b: int
    needed: int | None
    allowed: tuple[str, ...] = ()
    level: float = 0.95
    at: At | None = None

    def sentence(self) -> str:
        """The conclusion in words."""
        low, high = 100 * self.interval.low, 100 * self.interval.high
        within = f" within {self.at.budget:.3g} {self.at.axis} each" if self.at else ""
        numbers = (
            f"{self.metric} {100 * self.rate_b:.1f} % against {100 * self.rate_a:.1f} % "
            f"over {self.pairs} behaviors{within} ({100 * self.difference:+.1f} points, "
            f"{100 * self.level:g} % interval {low:+.1f} to {high:+.1f}, {self.test}, "
            f"p = {self.p_adjusted:.2g})"
        )
        if self.p_adjusted < 1 - self.level and self.difference:
            verb = "higher" if self.difference > 0 else "lower"
            return f"{self.name_b} has a {verb} {self.metric} than {self.name_a}: {numbers}."
        need = (
            f"; a difference of this size needs about {self.needed} behaviors"
            if self.needed
            else ""
        )
        return f"No difference between {self.name_a} and {self.name_b} is shown: {numbers}{need}."


def require_comparable(
    a: Setting, b: Setting, *, allow: Sequence[str] = ()
) -> tuple[Subject | None, tuple[str, ...]]:
    """What is being compared and which further differences were allowed.

    Args:
        a: one setting.
        b: the other.
        allow: paths, or beginnings of paths, that may differ as well (`generation`,
            `budget.flops`); `all` for any.

    Raises:
        ConfigError: they differ in more than one of attack, models and defense, or in anything
            else.
    """
    found = differences([a, b])
    if not found:
        return None, ()
    compared = [
        s for s in SUBJECTS if any(p.split(".")[0] == s and not _allowed(p, allow) for p in found)
    ]
    subject = compared[0] if len(compared) == 1 else None
    own = {subject, *BELONGS_TO.get(subject, ())} if subject else set()
    rest = [p for p in found if p.split(".")[0] not in own]
    refused = [p for p in rest if not _allowed(p, allow)]
    if len(compared) > 1 or refused:
        shown = "; ".join(f"{p}: {found[p][0]!r} against {found[p][1]!r}" for p in refused[:8])
        more = f" and {len(refused) - 8} more" if len(refused) > 8 else ""
        raise ConfigError(
            f"{a.label} and {b.label} are not comparable: they differ in {shown}{more}. "
            "Compare runs that differ in the attack, the model or the defense alone, "
            "or allow the difference: "
            + " ".join(f"--allow {name}" for name in sorted({p.split(".")[0] for p in refused}))
        )
    return subject, tuple(rest)


def _allowed(path: str, allow: Sequence[str]) -> bool:
    return any(a == "all" or path == a or path.startswith(a + ".") for a in allow)


def compare(
    documents_a: Sequence[Document],
    documents_b: Sequence[Document],
    judge: str,
    *,
    rng: Rng,
    when: When = "any",
    at: At | None = None,
    threshold: float | None = None,
    allow: Sequence[str] = (),
    level: float = 0.95,
) -> Comparison:
    """Compare two groups of runs, each of a single setting.

    Args:
        documents_a: runs of A.
        documents_b: runs of B.
        judge: judge id; both sides are read with this judge and one threshold.
        rng: stream of the permutation test (used above 16 pairs that differ, unless all values are
            0 or 1).
        when: which steps count, unless `at` is given.
        at: success within a budget, to compare at equal cost.
        threshold: overrides the judge's.
        allow: see `require_comparable`.
        level: nominal coverage.

    Raises:
        ConfigError: not comparable, not judged by this judge, or nothing can be paired; it says
            what is missing.
    """
    require_judge(judge, [*documents_a, *documents_b])
    a, b = _one_setting(documents_a), _one_setting(documents_b)
    subject, allowed = require_comparable(a, b, allow=allow)
    sides = []
    for setting, documents in ((a, documents_a), (b, documents_b)):
        trials = trials_of(documents, judge, threshold=threshold)
        metrics = {t.metric for t in trials}
        if len(metrics) != 1:
            raise ConfigError(
                f"{setting.label}: {judge} measures {sorted(metrics) or 'nothing'} here: "
                "expected one thing"
            )
        sides.append(trials)
    if sides[0][0].metric != sides[1][0].metric:
        raise ConfigError(
            f"{judge} measures {sides[0][0].metric} of A and {sides[1][0].metric} of B"
        )
    names = _names(a, b, subject)
    pairs, only_a, only_b = _pairs(sides[0], sides[1], when, at)
    if not pairs:
        raise ConfigError(_why_unpaired(names, sides, judge, at))
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    p_value, test = paired_test(y - x, rng)
    return Comparison(
        *names,
        sides[0][0].metric.replace("_", " "),
        judge,
        sides[0][0].judge.threshold,
        rate_a=float(x.mean()),
        rate_b=float(y.mean()),
        difference=float((y - x).mean()),
        interval=paired_interval(x, y, level),
        p_value=p_value,
        p_adjusted=p_value,
        test=test,
        effect=2 * math.asin(math.sqrt(float(y.mean())))
        - 2 * math.asin(math.sqrt(float(x.mean()))),
        pairs=len(pairs),
        only_a=only_a,
        only_b=only_b,
        needed=pairs_needed(y - x),
        allowed=allowed,
        level=level,
        at=at,
    )


def require_judge(judge: str, documents: Sequence[Document]) -> None:
    """Refuse a judge that scored nothing here and that is not installed either.

    Raises:
        UnknownNameError: with the nearest names.
    """
    from judgezoo import Judge

    scored = judges_of(documents)
    if judge not in scored and judge_view(judge).name not in Judge.available():
        raise UnknownNameError("judge", judge, {*scored, *Judge.available()})


def _why_unpaired(
    names: Sequence[str], sides: Sequence[Sequence[Trial]], judge: str, at: At | None
) -> str:
    """Why no behavior of two sides can be paired, and what to do."""
    for trial in (t for side in sides for t in side if at and len(t.steps)):
        if at and np.isnan(spent(trial, at.axis, at.spend)).any():
            return f"run {trial.run_id}: {unknown_cost(at.axis)}"
    for name, side in zip(names, sides, strict=True):
        if all(np.isnan(t.scores).all() for t in side):
            return (
                f"{name}: {judge} scored none of its {sum(t.completions for t in side)} answers; "
                f"judge them first: adversariallm judge out=STORE judge={side[0].judge.name}"
            )
    both = f"{names[0]} and {names[1]}"
    behaviors = [{t.behavior for t in side} for side in sides]
    if not behaviors[0] & behaviors[1]:
        return f"{both} have no behavior in common: nothing can be paired"
    keys = [{(t.behavior, t.seed) for t in side} for side in sides]
    if not keys[0] & keys[1]:
        seeds = [", ".join(map(str, sorted({seed for _, seed in k}))) for k in keys]
        return (
            f"{both} have no seed in common (A has {seeds[0]}, B {seeds[1]}): runs are paired by "
            "behavior and seed. Choose groups that share seeds"
        )
    if at is None:
        return f"{both} have no behavior that is scored on both sides: nothing can be paired"
    return (
        f"{both} have no behavior with a scored answer on both sides within {at.budget:.6g} "
        f"{at.axis}: at that budget the answers of one side are not made yet, as with "
        f"completions=last. Give a larger budget, as in --at {at.axis}=BUDGET, or make the answers "
        "of the earlier steps: adversariallm sample out=STORE completions=all"
    )


def _one_setting(documents: Sequence[Document]) -> Setting:
    settings = {s.key: s for s in map(setting_of, documents)}
    if len(settings) != 1:
        found = ", ".join(sorted(s.label for s in settings.values())) or "no runs"
        apart = differences(list(settings.values()))
        paths = f"; they differ in {', '.join(list(apart)[:5])}" if apart else ""
        raise ConfigError(
            f"each side of a comparison must be one setting; found {found}{paths}: select more "
            "narrowly"
        )
    return next(iter(settings.values()))


def _names(a: Setting, b: Setting, subject: Subject | None) -> tuple[str, str]:
    pick = {
        "attack": (a.attack, b.attack),
        "models": (a.model, b.model),
        "defense": (a.defense or "no defense", b.defense or "no defense"),
    }
    names = pick[subject] if subject else (a.label, b.label)
    return names if names[0] != names[1] else (f"{names[0]} (A)", f"{names[1]} (B)")


def _pairs(
    a: Sequence[Trial], b: Sequence[Trial], when: When, at: At | None
) -> tuple[list[tuple[float, float]], int, int]:
    """Per behavior the means over the seeds that both sides have."""
    left, right = _by_key(a, when, at), _by_key(b, when, at)
    common: dict[str, list[tuple[float, float]]] = {}
    for key in sorted(left.keys() & right.keys()):
        common.setdefault(key[0], []).append((left[key], right[key]))
    pairs = [
        (float(np.mean([p[0] for p in v])), float(np.mean([p[1] for p in v])))
        for v in common.values()
    ]
    all_a, all_b = {t.behavior for t in a}, {t.behavior for t in b}
    return pairs, len(all_a - common.keys()), len(all_b - common.keys())


def _by_key(trials: Sequence[Trial], when: When, at: At | None) -> dict[tuple[str, int], float]:
    values = {}
    for trial in trials:
        if at is None:
            known = outcomes(trial, when)[0]
            value = float(np.mean(known)) if known else math.nan
        else:
            value = float(value_at(trial, np.array([at.budget]), at.axis, at.spend)[0])
        if not math.isnan(value):
            values[trial.behavior, trial.seed] = value
    return values


def paired_test(difference: Floats, rng: Rng, *, repeats: int = 20_000) -> tuple[float, str]:
    """Two-sided test that each behavior's difference is as likely to be positive as negative.

    Exact McNemar for differences of -1, 0, 1; else all sign flips up to 16 differing pairs, random
    flips above.
    """
    d = difference[np.abs(difference) > 1e-12]
    if not d.size:
        return 1.0, "no pair differs"
    if np.isin(d, (-1.0, 1.0)).all():
        return float(stats.binomtest(int((d > 0).sum()), d.size).pvalue), "exact McNemar test"
    observed = abs(float(d.sum())) - 1e-9
    if d.size <= EXACT_UP_TO:
        bits = (np.arange(2**d.size)[:, None] >> np.arange(d.size)) & 1
        sums = np.abs((2 * bits - 1) @ d)
        return float((sums >= observed).mean()), "exact permutation test"
    signs = rng.numpy().integers(0, 2, size=(repeats, d.size)) * 2 - 1
    extreme = int((np.abs(signs @ d) >= observed).sum())
    return (extreme + 1) / (repeats + 1), f"permutation test, {repeats} draws"


def paired_interval(x: Floats, y: Floats, level: float = 0.95) -> Interval:
    """Interval for the mean of `y - x`: Newcombe's hybrid score for 0/1 values, else Student's t.

    Source: Newcombe 1998, Statistics in Medicine 17, 2635-2650, method 10.
    """
    n = len(x)
    if np.isin(x, (0.0, 1.0)).all() and np.isin(y, (0.0, 1.0)).all():
        return _newcombe(x, y, level)
    d = y - x
    if n == 1 or float(d.std(ddof=1)) == 0.0:
        # Without spread the values say nothing about their own: two Wilson intervals do.
        a, b = wilson(float(x.sum()), n, level), wilson(float(y.sum()), n, level)
        mean = float(d.mean())
        low = mean - math.hypot(float(y.mean()) - b.low, a.high - float(x.mean()))
        high = mean + math.hypot(b.high - float(y.mean()), float(x.mean()) - a.low)
        return Interval(max(-1.0, low), min(1.0, high))
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * float(d.std(ddof=1)) / math.sqrt(n)
    return Interval(max(-1.0, float(d.mean()) - half), min(1.0, float(d.mean()) + half))


def _newcombe(x: Floats, y: Floats, level: float) -> Interval:
    n = len(x)
    both, only_y = float((x * y).sum()), float(((1 - x) * y).sum())
    only_x, none = float((x * (1 - y)).sum()), float(((1 - x) * (1 - y)).sum())
    p_y, p_x = (both + only_y) / n, (both + only_x) / n
    ends_y, ends_x = wilson(both + only_y, n, level), wilson(both + only_x, n, level)
    margins = (both + only_y) * (only_x + none) * (both + only_x) * (only_y + none)
    product = both * none - only_y * only_x
    if margins == 0:
        phi = 0.0
    else:
        corrected = max(product - n / 2, 0.0) if product > 0 else product
        phi = corrected / math.sqrt(margins)
    dl_y, du_y, dl_x, du_x = (
        p_y - ends_y.low,
        ends_y.high - p_y,
        p_x - ends_x.low,
        ends_x.high - p_x,
    )
    low = math.sqrt(max(dl_y**2 - 2 * phi * dl_y * du_x + du_x**2, 0.0))
    high = math.sqrt(max(du_y**2 - 2 * phi * du_y * dl_x + dl_x**2, 0.0))
    return Interval(max(-1.0, p_y - p_x - low), min(1.0, p_y - p_x + high))


def pairs_needed(difference: Floats, *, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Behaviors needed to detect the observed mean difference; None where it is 0 or has no spread.

    Normal approximation for paired differences: (z_alpha/2 + z_power)^2 variance / mean^2.
    """
    mean = float(difference.mean())
    if mean == 0 or len(difference) < 2:
        return None
    variance = float(difference.var(ddof=1))
    z = float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power))
    return max(2, math.ceil(z * z * variance / mean**2)) if variance > 0 else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given.

    Source: Holm 1979.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with `p_adjusted` corrected for how many there are."""
    values = holm([c.p_value for c in comparisons])
    return [replace(c, p_adjusted=p) for c, p in zip(comparisons, values, strict=True)]
