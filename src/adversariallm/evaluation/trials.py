"""One behavior of one run as arrays: scores by step and sample, and what had been spent by then.

Everything in `evaluation` is computed from trials. A value that no judge gave is NaN here, never 0.
Shape legend: S steps, K samples (padded to the longest step).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adversariallm.evaluation.facts import (
    Document,
    JudgeView,
    Metric,
    has_own_seconds,
    has_queries,
    judge_view,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

COST_KEYS = ("queries", "flops", "tokens", "seconds")


@dataclass(frozen=True)
class Trial:
    """Scores of one evaluated behavior of one run under one judge.

    Attributes:
        metric: what the judge measures here.
        scores: `[S, K]` as the judge gave them; NaN where unscored or where there is no completion.
        present: `[S, K]`, whether there is a completion.
        steps: `[S]` step numbers.
        loss: `[S]`, NaN where there is none.
        search: cumulative `[S]` cost of setup and optimization by `COST_KEYS`, all roles; NaN
            where unknown (FLOPs of endpoints, seconds of runs that shared batches).
        sampling: cumulative `[S]` cost of the scored completions.
    """

    run_id: str
    behavior: str
    seed: int
    category: str | None
    metric: Metric
    judge: JudgeView
    steps: NDArray[np.int64]
    scores: Floats
    present: Bools
    loss: Floats
    search: Mapping[str, Floats]
    sampling: Mapping[str, Floats]

    @property
    def hits(self) -> Floats:
        """`[S, K]`: 1 where the metric's event happened, 0 where not, NaN where nobody knows.

        The event is a score at or above the threshold; for over-refusal it is a score below it.
        """
        at_least = self.scores >= self.judge.threshold
        event = ~at_least if self.metric == "over_refusal" else at_least
        return np.where(np.isnan(self.scores), np.nan, event.astype(np.float64))

    @property
    def unscored(self) -> int:
        """Completions without a score."""
        return int((self.present & np.isnan(self.scores)).sum())

    @property
    def completions(self) -> int:
        """Completions in all."""
        return int(self.present.sum())


def score_matrix(
    steps: Sequence[Mapping[str, Any]], judge: JudgeView, key: str | None = None
) -> tuple[Floats, Bools]:
    """`[S, K]` values of one score key (the judge's own by default) and the mask of completions."""
    width = max((len(s["model_completions"]) for s in steps), default=0)
    values = np.full((len(steps), width), np.nan)
    present = np.zeros((len(steps), width), dtype=bool)
    for i, step in enumerate(steps):
        count = len(step["model_completions"])
        present[i, :count] = True
        for k, value in enumerate(
            step["scores"].get(judge.id, {}).get(key or judge.score_key, ())[:count]
        ):
            if value is not None and math.isfinite(value):
                values[i, k] = value
    return values, present


def trials_of(
    documents: Iterable[Document], judge: str, *, threshold: float | None = None
) -> list[Trial]:
    """Every evaluated behavior that the judge's scores can speak about.

    Args:
        documents: joined run documents.
        judge: judge id, a key of `scores`.
        threshold: a score at or above it is a success; the judge's own by default.
    """
    view = judge_view(judge)
    if threshold is not None:
        view = JudgeView(view.id, view.name, view.semantics, view.score_key, threshold)
    found = []
    for document in documents:
        shared = search_cost(document)
        for run in document["runs"]:
            metric = view.metric(run["behavior"])
            if metric is not None:
                found.append(_trial(document, run, view, metric, shared))
    return found


def _trial(
    document: Document,
    run: Mapping[str, Any],
    view: JudgeView,
    metric: Metric,
    shared: Mapping[int, Mapping[str, float]],
) -> Trial:
    steps = run["steps"]
    scores, present = score_matrix(steps, view)
    search, sampling = run_costs(document, run, shared)
    return Trial(
        run_id=document["run_id"],
        behavior=run["behavior"]["id"],
        seed=int(document["config"].get("seed", 0)),
        category=run["behavior"].get("category"),
        metric=metric,
        judge=view,
        steps=np.array([s["step"] for s in steps], dtype=np.int64),
        scores=scores,
        present=present,
        loss=np.array(
            [math.nan if s["loss"] is None else s["loss"] for s in steps], dtype=np.float64
        ),
        search=search,
        sampling=sampling,
    )


def run_costs(
    document: Document,
    run: Mapping[str, Any],
    shared: Mapping[int, Mapping[str, float]] | None = None,
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Cumulative cost of search and of sampling after each step, `[S]` by `COST_KEYS`.

    Args:
        document: a joined run document.
        run: one of its evaluated behaviors.
        shared: what `search_cost` gives for the document, where it is known already.
    """
    steps, shared = run["steps"], shared if shared is not None else search_cost(document)
    setup = _cost(document.get("ledgers", {}), ("setup",), without=("defense",))
    search = _cumulative([shared[s["step"]] for s in steps], setup)
    sampling = _cumulative([_cost(s["ledgers"], ("sampling",)) for s in steps], {})
    if not has_queries(document):
        unknown = np.full(len(steps), np.nan)
        search |= {"queries": unknown, "tokens": unknown}
        sampling |= {"queries": unknown, "tokens": unknown}
    return search, sampling


def _cost(
    ledgers: Mapping[str, Any], phases: tuple[str, ...], *, without: tuple[str, ...] = ()
) -> dict[str, float]:
    # Plain sums: a large store has hundreds of thousands of steps, too many for Usage objects.
    total = {"queries": 0.0, "flops": 0.0, "tokens": 0.0}
    for phase in phases:
        for role, used in ledgers.get(phase, {}).items():
            if role in without:
                continue
            flops = used.get("flops", 0)
            total["queries"] += used.get("queries", 0)
            total["flops"] += math.nan if flops is None else flops
            total["tokens"] += used.get("tokens_processed", 0) + used.get("tokens_generated", 0)
    return total


def search_cost(document: Document) -> dict[int, dict[str, float]]:
    """Optimization cost of each step; a run over several behaviors spends it once for all."""
    costs: dict[int, dict[str, float]] = {}
    timed = has_own_seconds(document)
    for run in document["runs"]:
        for step in run["steps"]:
            row = costs.setdefault(step["step"], dict.fromkeys(COST_KEYS, 0.0))
            for key, value in _cost(step["ledgers"], ("optimization",)).items():
                row[key] += value
            row["seconds"] = max(row["seconds"], float(step["time_taken"])) if timed else math.nan
    return costs


def _cumulative(
    rows: Sequence[Mapping[str, float]], start: Mapping[str, float]
) -> dict[str, Floats]:
    return {
        key: start.get(key, 0.0) + np.cumsum([row.get(key, 0.0) for row in rows], dtype=np.float64)
        for key in COST_KEYS
    }
