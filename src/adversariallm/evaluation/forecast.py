"""Forecast of success against the number of samples, by the power law of Best-of-N.

Source: Hughes et al. 2024 (arXiv 2412.03556), section on power laws: -log ASR(N) = a N^(-b). It
says what a fitted curve says, not that success follows one; compare with what was held out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adversariallm.evaluation.success import best_of_n


@dataclass(frozen=True)
class PowerLaw:
    """A fitted curve.

    Attributes:
        a: -log of the rate at one sample.
        b: how fast that shrinks.
        largest: largest number of samples that it was fitted to.
    """

    a: float
    b: float
    largest: int

    def rate(self, n: int) -> float:
        """Predicted rate at `n` samples; above `largest` it is a forecast."""
        return math.exp(-self.a * n**-self.b)


def rates_by_samples(
    hits: Sequence[int], samples: Sequence[int], numbers: Sequence[int]
) -> list[float]:
    """Expected rate at each number of samples, over behaviors, without bias.

    Args:
        hits: successful samples of each behavior.
        samples: scored samples of each behavior.
        numbers: numbers of samples, at most those that every behavior has.
    """
    pairs = list(zip(hits, samples, strict=True))
    return [float(np.mean([best_of_n(h, s, n) for h, s in pairs])) for n in numbers]


def fit_power_law(numbers: Sequence[int], rates: Sequence[float]) -> PowerLaw:
    """Least squares of log(-log rate) on log n.

    Args:
        numbers: numbers of samples.
        rates: the rate at each; only rates strictly between 0 and 1 can be used.

    Raises:
        ValueError: fewer than two usable rates.
    """
    pairs = zip(numbers, rates, strict=True)
    usable = [(n, r) for n, r in pairs if 0.0 < r < 1.0]
    if len({n for n, _ in usable}) < 2:
        raise ValueError(
            f"{len(usable)} rates strictly between 0 and 1: a power law needs two numbers of "
            "samples; take more samples or other numbers"
        )
    x = np.log([n for n, _ in usable])
    y = np.log([-math.log(r) for _, r in usable])
    slope, intercept = np.polyfit(x, y, 1)
    return PowerLaw(float(np.exp(intercept)), float(-slope), max(n for n, _ in usable))


__all__ = ["PowerLaw", "fit_power_law", "rates_by_samples"]
