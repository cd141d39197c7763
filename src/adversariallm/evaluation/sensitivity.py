"""Do the conclusions depend on the judge? Agreement of judges, and comparisons redone under each.

It tells where judges differ, not which of them is right: that needs labels
(`uncertainty.correct_for_judge`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adversariallm.core.errors import ConfigError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.compare import Comparison, compare
from adversariallm.evaluation.facts import Document, judge_view, judges_of
from adversariallm.evaluation.success import When
from adversariallm.evaluation.trials import trials_of

Conclusion = Literal["B higher", "A higher", "no difference shown"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two judges' verdicts on the same completions agree.

    Attributes:
        n: completions that both scored.
        share: share of equal verdicts; None without common completions.
        kappa: Cohen's kappa; None where a judge gives one verdict only, so that chance explains all
            agreement.
        only_a: completions that A alone calls a hit.
        only_b: completions that B alone calls a hit.
        unscored: completions that one of them left unscored.
    """

    a: str
    b: str
    n: int
    share: float | None
    kappa: float | None
    only_a: int
    only_b: int
    unscored: int


def agreement(
    documents: Sequence[Document], judges: Sequence[str] | None = None
) -> list[Agreement]:
    """Agreement of every pair of judges on attack success, each at its own threshold.

    Args:
        documents: joined run documents.
        judges: judge ids; all that measure attack success if None.
    """
    verdicts = {j: _verdicts(documents, j) for j in judges or judges_of(documents)}
    names = [j for j in verdicts if verdicts[j]]
    return [_agree(a, b, verdicts) for i, a in enumerate(names) for b in names[i + 1 :]]


def _verdicts(documents: Sequence[Document], judge: str) -> dict[tuple[str, str, int, int], float]:
    """Completion -> 1, 0 or NaN."""
    return {
        (t.run_id, t.behavior, int(step), k): float(t.hits[i, k])
        for t in trials_of(documents, judge)
        if t.metric == "attack_success"
        for i, step in enumerate(t.steps)
        for k in range(t.present.shape[1])
        if t.present[i, k]
    }


def _agree(
    a: str, b: str, verdicts: dict[str, dict[tuple[str, str, int, int], float]]
) -> Agreement:
    left, right = verdicts[a], verdicts[b]
    keys = sorted(left.keys() | right.keys())
    pairs = np.array([(left.get(k, math.nan), right.get(k, math.nan)) for k in keys])
    both = pairs[~np.isnan(pairs).any(axis=1)]
    missing = len(pairs) - len(both)
    if not len(both):
        return Agreement(a, b, 0, None, None, 0, 0, missing)
    x, y = both[:, 0], both[:, 1]
    share = float((x == y).mean())
    chance = float(x.mean() * y.mean() + (1 - x.mean()) * (1 - y.mean()))
    kappa = None if chance >= 1 else (share - chance) / (1 - chance)
    only_a, only_b = int(((x == 1) & (y == 0)).sum()), int(((x == 0) & (y == 1)).sum())
    return Agreement(a, b, len(both), share, kappa, only_a, only_b, missing)


@dataclass(frozen=True, slots=True)
class Redone:
    """A comparison under one judge and threshold, or why there is none.

    Attributes:
        conclusion: None where the comparison could not be made.
        flips: the conclusion differs from the reference's.
        reverses: it is the opposite of the reference's.
    """

    judge: str
    threshold: float
    comparison: Comparison | None
    conclusion: Conclusion | None
    reason: str | None
    flips: bool = False
    reverses: bool = False


def conclusion_of(comparison: Comparison) -> Conclusion:
    """What a reader would take from it."""
    if comparison.p_adjusted >= 1 - comparison.level or comparison.difference == 0:
        return "no difference shown"
    return "B higher" if comparison.difference > 0 else "A higher"


def redo(
    documents_a: Sequence[Document],
    documents_b: Sequence[Document],
    *,
    rng: Rng,
    reference: str | None = None,
    judges: Sequence[str] | None = None,
    thresholds: Sequence[float] = (),
    when: When = "any",
    allow: Sequence[str] = (),
) -> list[Redone]:
    """Repeat a comparison under every judge and threshold; the first entry is the reference.

    Args:
        documents_a: runs of A.
        documents_b: runs of B.
        rng: stream of the permutation tests.
        reference: judge whose conclusion is the reference; the first of `judges` if None.
        judges: judge ids; all that scored both sides if None.
        thresholds: further thresholds, tried with every judge besides its own.
        when: which steps count.
        allow: see `compare.require_comparable`.
    """
    both = sorted(set(judges_of(documents_a)) & set(judges_of(documents_b)))
    names = list(judges or both)
    if reference is not None:
        names = [reference, *(n for n in names if n != reference)]
    found = []
    for judge in names:
        for threshold in dict.fromkeys((judge_view(judge).threshold, *thresholds)):
            try:
                made = compare(
                    documents_a,
                    documents_b,
                    judge,
                    rng=rng,
                    when=when,
                    threshold=threshold,
                    allow=allow,
                )
            except ConfigError as error:
                found.append(Redone(judge, threshold, None, None, str(error)))
                continue
            conclusion = conclusion_of(made)
            first = found[0].conclusion if found else conclusion
            flips = first is not None and conclusion != first
            reverses = flips and "no difference shown" not in (first, conclusion)
            found.append(Redone(judge, threshold, made, conclusion, None, flips, reverses))
    return found
