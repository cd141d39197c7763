"""Erased versions of a prompt, how many there are, and what checking them all certifies.

Source: Kumar et al. 2023, arXiv 2309.02705: suffix, insertion and infusion modes, Theorem 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Literal, TypeVar

from scipy.stats import beta

T = TypeVar("T")
Mode = Literal["suffix", "insertion", "infusion"]


def erased(
    units: Sequence[T], mode: Mode, depth: int, insertions: int = 1
) -> Iterator[tuple[T, ...]]:
    """The prompt and its erased versions, each once and none empty, the prompt itself first.

    Args:
        units: the prompt's tokens or words.
        mode: `suffix` erases up to `depth` units at the end, `insertion` up to `insertions`
            stretches of up to `depth` each, `infusion` any up to `depth` units.
        depth: most units that are erased.
        insertions: stretches, for `insertion`.
    """
    seen: set[tuple[T, ...]] = set()
    for version in _versions(tuple(units), mode, depth, insertions):
        if version and version not in seen:
            seen.add(version)
            yield version


def _versions(
    units: tuple[T, ...], mode: Mode, depth: int, insertions: int
) -> Iterator[tuple[T, ...]]:
    if mode == "suffix":
        for count in range(min(depth, len(units)) + 1):
            yield units[: len(units) - count]
    elif mode == "insertion":
        yield from _without_stretches(units, depth, insertions)
    else:
        for count in range(min(depth, len(units)) + 1):
            for places in combinations(range(len(units)), count):
                yield tuple(u for k, u in enumerate(units) if k not in places)


def _without_stretches(
    units: tuple[T, ...], depth: int, insertions: int
) -> Iterator[tuple[T, ...]]:
    """Up to `insertions` disjoint stretches of up to `depth` units erased."""
    yield units
    if not insertions:
        return
    for start in range(len(units)):
        for end in range(start + 1, min(start + depth, len(units)) + 1):
            for rest in _without_stretches(units[end:], depth, insertions - 1):
                yield units[:start] + rest


def most_versions(count: int, mode: Mode, depth: int, insertions: int = 1) -> int:
    """An upper bound on the versions of a prompt of `count` units, before equal ones are merged."""
    if mode == "suffix":
        return min(depth, count) + 1
    if mode == "infusion":
        return sum(comb(count, k) for k in range(min(depth, count) + 1))
    table = [1] * (count + 1)
    for _ in range(insertions):
        table = [
            1
            + sum(
                table[left - length]
                for start in range(n)
                for left in (n - start,)
                for length in range(1, min(depth, left) + 1)
            )
            for n in range(count + 1)
        ]
    return table[count]


def certified_detection(found: int, of: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Share of harmful prompts that are detected whatever is added to them within the mode.

    A prompt whose clean text the filter detects stays detected with any addition of up to `depth`
    units, because the clean text is one of the versions that are checked. So the filter's clean
    detection rate is a lower bound under attack.

    Args:
        found: clean harmful prompts that the filter detects.
        of: all harmful prompts that were tried.
        confidence: of the one-sided Clopper-Pearson bound.

    Returns:
        The rate, and a lower bound of it for the population the prompts are drawn from.

    Raises:
        ValueError: the counts cannot belong together.
    """
    if not 0 <= found <= of or of < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"found={found}, of={of}, confidence={confidence}: expected 0 <= found <= of, of at "
            "least 1, confidence between 0 and 1"
        )
    lower = float(beta.ppf(1 - confidence, found, of - found + 1)) if found else 0.0
    return found / of, lower
