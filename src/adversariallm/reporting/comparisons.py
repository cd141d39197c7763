"""Comparisons between groups of stored runs named on a command line.

It only selects and words; the tests and intervals are in `evaluation.compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from adversariallm.core.errors import ConfigError
from adversariallm.core.rng import Rng
from adversariallm.evaluation.budgets import largest_common_budget
from adversariallm.evaluation.compare import At, Comparison, adjusted, compare, require_judge
from adversariallm.evaluation.curves import Axis
from adversariallm.evaluation.facts import judges_of
from adversariallm.evaluation.sensitivity import agreement, redo
from adversariallm.evaluation.success import When
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting.load import nothing_fits, read_documents

AXES = ("flops", "queries", "tokens", "seconds")
STREAM = Rng.root(0).child("compare")


def _load(store: Path, groups: Sequence[str], where: Sequence[str]) -> list[list[dict[str, Any]]]:
    if len(groups) < 2:
        raise ConfigError("compare needs at least two groups, as in: attack=direct attack=gcg")
    loaded = [read_documents(store, [*where, group]) for group in groups]
    for group, documents in zip(groups, loaded, strict=True):
        if not documents:
            raise nothing_fits(store, [*where, group])
    return loaded


def _judge(loaded: Sequence[Sequence[Mapping[str, Any]]], judge: str | None) -> str:
    common = set.intersection(*(set(judges_of(g)) for g in loaded))
    if judge is None and len(common) != 1:
        shown = ", ".join(sorted(common)) or "none"
        raise ConfigError(f"name the judge with --judge; judges that scored all groups: {shown}")
    if judge is not None:
        require_judge(judge, [d for group in loaded for d in group])
    return judge or common.pop()


def compare_groups(
    store: Path,
    groups: Sequence[str],
    *,
    where: Sequence[str] = (),
    judge: str | None = None,
    at: str | None = None,
    when: str = "any",
    threshold: float | None = None,
    allow: Sequence[str] = (),
) -> list[Comparison]:
    """The first group against each of the others, p-values corrected together.

    Args:
        store: a run store.
        groups: filters, see `runs.filters`.
        where: filters that hold of all groups.
        judge: the only common judge if None.
        at: `flops`, `queries`, `tokens` or `seconds`, to compare each pair at the largest
            budget at which all outcomes are known, or `flops=1e12`.
        when: which steps count, without `at`.
        threshold: overrides the judge's.
        allow: settings that may differ.

    Raises:
        ConfigError: nothing to compare, or unlike things.
    """
    if when not in get_args(When):
        raise ConfigError(f"when={when!r}: expected one of {', '.join(get_args(When))}")
    loaded = _load(store, groups, where)
    chosen = _judge(loaded, judge)
    if at is not None and at.partition("=")[0] not in AXES:
        raise ConfigError(f"at={at!r}: expected one of {', '.join(AXES)}, perhaps with =BUDGET")
    first, *others = loaded
    return adjusted(
        [
            compare(
                first,
                other,
                chosen,
                rng=STREAM,
                when=cast(When, when),
                at=None if at is None else _point(at, (first, other), chosen, threshold),
                threshold=threshold,
                allow=allow,
            )
            for other in others
        ]
    )


def _point(
    at: str,
    pair: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    judge: str,
    threshold: float | None,
) -> At:
    """The budget asked for, or the largest at which every outcome of both sides is known."""
    name, _, budget = at.partition("=")
    axis = cast(Axis, name)
    if budget:
        return At(axis, _number(budget))
    trials = [trials_of(group, judge, threshold=threshold) for group in pair]
    return At(axis, largest_common_budget(trials, axis, "total"))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"budget {text!r}: expected a number, as in flops=1e12") from None


def describe_sensitivity(
    store: Path, groups: Sequence[str], *, where: Sequence[str] = (), judge: str | None = None
) -> list[str]:
    """How the judges agree on the first two groups, and what each of them would have concluded."""
    a, b, *_ = _load(store, groups, where)
    lines = []
    for pair in agreement([*a, *b]):
        kappa = "undefined" if pair.kappa is None else f"{pair.kappa:.2f}"
        share = "-" if pair.share is None else f"{100 * pair.share:.0f} %"
        lines.append(
            f"{pair.a} and {pair.b} agree on {share} of {pair.n} answers (kappa {kappa}; "
            f"{pair.only_a} hits of the first alone, {pair.only_b} of the second)"
        )
    for made in redo(a, b, rng=STREAM, reference=judge):
        mark = " REVERSED" if made.reverses else " flips" if made.flips else ""
        lines.append(
            f"under {made.judge} at {made.threshold:g}: {made.conclusion or made.reason}{mark}"
        )
    return lines
