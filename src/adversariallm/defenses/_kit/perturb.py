"""Random changes of characters, and what they do to a suffix whose every character matters.

Source: Robey et al. 2023, arXiv 2310.03684: perturbations of section 3.2, Proposition 4.2.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, comb, floor
from random import Random
from typing import Literal

Perturbation = Literal["swap", "insert", "patch"]
ALPHABET = string.printable


def perturb(text: str, kind: Perturbation, share: float, draw: Random) -> str:
    """The text with a share of its characters changed, rounded down.

    Args:
        text: what is changed.
        kind: `swap` replaces characters at random places, `insert` puts one after each of them,
            `patch` replaces a run of neighbors.
        share: of the characters, in [0, 1].
        draw: the random stream.
    """
    count = floor(len(text) * share)
    chars = list(text)
    if kind == "patch":
        first = draw.randint(0, len(text) - count)
        places: Sequence[int] = range(first, first + count)
    else:
        places = sorted(draw.sample(range(len(text)), count))
    for at in places:
        new = draw.choice(ALPHABET)
        chars[at] = chars[at] + new if kind == "insert" else new
    return "".join(chars)


def certified_success(
    *,
    copies: int,
    share: float,
    length: int,
    suffix: int,
    unstable: int,
    kind: Literal["swap", "patch"] = "swap",
    gamma: float = 0.5,
    alphabet: int = len(ALPHABET),
) -> float:
    """Probability that the vote defeats a suffix, Proposition 4.2.

    The suffix stands at the end of the prompt and is taken to fail once `unstable` or more of its
    characters differ (it is k-unstable). A drawn character may equal the old one.

    Args:
        copies: N, perturbed copies.
        share: q, of the characters changed in each copy.
        length: m, characters of the prompt, suffix included.
        suffix: m_S, characters of the suffix.
        unstable: k, at least 1.
        kind: `swap` or `patch`; for `insert` no bound is known.
        gamma: the vote says "jailbroken" above this share of the copies.
        alphabet: v, characters that are drawn from.

    Raises:
        ValueError: the numbers cannot belong together.
    """
    if not 0 <= suffix <= length or unstable < 1 or copies < 1 or alphabet < 1:
        raise ValueError(
            f"copies={copies}, length={length}, suffix={suffix}, unstable={unstable}, "
            f"alphabet={alphabet}: expected 0 <= suffix <= length and all others at least 1"
        )
    if not 0 <= share <= 1 or not 0 <= gamma < 1:
        raise ValueError(f"share={share}, gamma={gamma}: expected share in [0, 1], gamma in [0, 1)")
    changed = floor(length * share)
    hits = _hits_of_patch if kind == "patch" else _hits_of_swap
    fails = sum(
        (
            probability * _at_least(unstable, hit, Fraction(alphabet - 1, alphabet))
            for hit, probability in hits(changed, length, suffix).items()
        ),
        Fraction(0),
    )
    needed = ceil(copies * (1 - Fraction(gamma).limit_denominator(10**6)))
    return float(_at_least(needed, copies, fails))


def _at_least(least: int, trials: int, success: Fraction) -> Fraction:
    """Probability of `least` or more successes in independent trials."""
    return sum(
        (
            comb(trials, t) * success**t * (1 - success) ** (trials - t)
            for t in range(max(0, least), trials + 1)
        ),
        Fraction(0),
    )


def _hits_of_swap(changed: int, length: int, suffix: int) -> dict[int, Fraction]:
    """How many changed places lie in the suffix: hypergeometric."""
    ways = comb(length, changed)
    return {
        hit: Fraction(comb(suffix, hit) * comb(length - suffix, changed - hit), ways)
        for hit in range(min(changed, suffix) + 1)
    }


def _hits_of_patch(changed: int, length: int, suffix: int) -> dict[int, Fraction]:
    """The same for a run of neighbors with a uniform start."""
    starts = length - changed + 1
    out: dict[int, Fraction] = {}
    for first in range(starts):
        hit = max(0, first + changed - max(first, length - suffix)) if suffix else 0
        out[hit] = out.get(hit, Fraction(0)) + Fraction(1, starts)
    return out
