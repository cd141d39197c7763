"""How often every shipped 95 % interval holds the truth, by size and rate; exact where possible.

Binomial intervals are summed over all outcomes; the others are simulated with fixed streams. The
goal is at least 93.5 % (nominal minus 1.5 points) everywhere; where an interval misses it,
docs/statistics.md must say so, and does.

    python benchmarks/coverage.py [--repeats 2000] [--only NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from adversariallm.core.rng import Rng
from adversariallm.evaluation.compare import paired_interval
from adversariallm.evaluation.intervals import (
    Interval,
    clopper_pearson,
    clustered_rate,
    mean_interval,
    wilson,
)
from adversariallm.evaluation.metrics import mean_bounds, quantile
from adversariallm.evaluation.uncertainty import (
    JudgeQuality,
    correct_for_judge,
    hierarchical_bootstrap,
    simultaneous_band,
)

SIZES = (10, 20, 40, 100, 300)
RATES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
SAMPLES = 8
GOAL = 0.935
# Where docs/statistics.md says the goal is missed: smallest size * min(rate, 1 - rate) that holds.
KNOWN = {"wilson": 4.0, "bootstrap": 30.0}

EXACT = {"wilson": wilson, "clopper-pearson": clopper_pearson}

Simulate = Callable[[np.random.Generator, int, float], tuple[Interval, float] | None]


def exact(interval: Callable[[float, float], Interval], n: int, rate: float) -> float:
    """Coverage of a binomial interval, summed over all outcomes."""
    total = 0.0
    for hits in range(n + 1):
        found = interval(hits, n)
        if found.low - 1e-12 <= rate <= found.high + 1e-12:
            total += float(stats.binom.pmf(hits, n, rate))
    return total


def nested(rng: np.random.Generator, n: int, rate: float) -> list[list[float]]:
    """Hits of `n` behaviors of different difficulty with `SAMPLES` samples each."""
    difficulty = rng.beta(rate, 1 - rate, size=n)
    hits: list[list[float]] = (
        (rng.random((n, SAMPLES)) < difficulty[:, None]).astype(float).tolist()
    )
    return hits


def clustered(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float]:
    """The report's interval for samples clustered by behavior."""
    return clustered_rate(nested(rng, n, rate)), rate


def mean_of_scores(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float]:
    """Mean of continuous scores, many of them near 0 and 1."""
    return mean_interval(rng.beta(rate, 1 - rate, size=n).tolist()), rate


def mean_of_any(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float]:
    """The distribution-free bounds for the same scores."""
    return mean_bounds(rng.beta(rate, 1 - rate, size=n).tolist()), rate


def median(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float]:
    """The `rate`-quantile of uniform scores."""
    return quantile(rng.random(n).tolist(), rate)[1], rate


def bootstrap(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float]:
    """Percentile bootstrap over behaviors and samples."""
    clusters = [[row] for row in nested(rng, n, rate)]
    stream = Rng.root(int(rng.integers(2**31)))
    return hierarchical_bootstrap(clusters, stream, resamples=400), rate


def paired(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float]:
    """Difference of two attacks that share most of what makes a behavior hard."""
    other = rate + (0.1 if rate < 0.5 else -0.1)
    shared = rng.random(n)
    own = np.where(rng.random(n) < 0.7, shared, rng.random(n))
    return paired_interval((shared < rate).astype(float), (own < other).astype(float)), other - rate


def corrected(rng: np.random.Generator, n: int, rate: float) -> tuple[Interval, float] | None:
    """Rate behind a judge of sensitivity 0.85 and specificity 0.9, by 50 labels of each kind."""
    hits = int(rng.binomial(n, rate * 0.85 + (1 - rate) * 0.1))
    quality = JudgeQuality(int(rng.binomial(50, 0.85)), 50, int(rng.binomial(50, 0.9)), 50)
    try:
        return correct_for_judge(hits, n, quality).interval, rate
    except ValueError:
        return None


SIMULATED: dict[str, Simulate] = {
    "clustered by behavior": clustered,
    "mean of scores": mean_of_scores,
    "mean bounds": mean_of_any,
    "quantile": median,
    "paired difference": paired,
    "judge corrected": corrected,
    "bootstrap": bootstrap,
}


def simulated(name: str, n: int, rate: float, repeats: int) -> float:
    """Share of repetitions whose interval holds the truth."""
    rng = Rng.root(0).child("coverage", name, n, int(1000 * rate)).numpy()
    found = [SIMULATED[name](rng, n, rate) for _ in range(repeats)]
    kept = [f for f in found if f is not None]
    return sum(i.low - 1e-12 <= truth <= i.high + 1e-12 for i, truth in kept) / len(kept)


def whole_curve(n: int, repeats: int) -> float:
    """Share of success curves that lie in their simultaneous band at every budget."""
    rng = Rng.root(0).child("coverage", "band", n).numpy()
    low, high = simultaneous_band(np.arange(n + 1) / n, n)
    won = np.sort(rng.random((repeats, n)), axis=1)
    return float(((low[1:] <= won) & (won <= high[:-1])).all(axis=1).mean())


NAMES = (*EXACT, *SIMULATED, "whole curve")


def measure(
    repeats: int, only: Sequence[str] = NAMES
) -> Iterator[tuple[str, dict[int, dict[float, float]]]]:
    """Coverage by interval, size and rate; the band has one pseudo-rate."""
    for name in NAMES:
        if name not in only:
            continue
        if name in EXACT:
            yield name, {n: {r: exact(EXACT[name], n, r) for r in RATES} for n in SIZES}
        elif name in SIMULATED:
            times = repeats // 4 if name == "bootstrap" else repeats
            yield name, {n: {r: simulated(name, n, r, times) for r in RATES} for n in SIZES}
        else:
            yield name, {n: {0.5: whole_curve(n, 5 * repeats)} for n in SIZES}


def unexplained(table: dict[str, dict[int, dict[float, float]]], repeats: int) -> list[str]:
    """Cells below the goal that the page does not announce; simulated ones by three errors."""
    noise = 3 * (GOAL * (1 - GOAL) / repeats) ** 0.5
    return [
        f"{name} n={n} rate={rate}: {100 * value:.1f} %"
        for name, sizes in table.items()
        for n, rates in sizes.items()
        for rate, value in rates.items()
        if value < GOAL - (0.0 if name in EXACT else noise)
        and n * min(rate, 1 - rate) >= KNOWN.get(name, 0.0)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"estimate: about {options.repeats / 1000 * 1.5:.0f} min on one core")
    table = {}
    for name, sizes in measure(options.repeats, options.only):
        table[name] = sizes
        print(f"\n{name}", flush=True)
        print("     n  " + "  ".join(f"{r:>5}" for r in next(iter(sizes.values()))))
        for n, rates in sizes.items():
            print(f"{n:>6}  " + "  ".join(f"{100 * v:5.1f}" for v in rates.values()))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    missed = unexplained(table, options.repeats)
    for line in missed:
        print("missed:", line)
    cells = sum(len(r) for s in table.values() for r in s.values())
    print(f"\n{cells - len(missed)} of {cells} cells hold {100 * GOAL:.1f} % or are announced")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
