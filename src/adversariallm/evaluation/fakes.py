"""Made-up run documents with chosen scores, for tests, examples and simulations.

They have the stored schema and nothing else in common with real runs: no model was asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adversariallm.core.config import stable_hash
from adversariallm.core.records import BehaviorRun, CompletionRecord, RunDocument, StepRecord

Scores = Sequence[Sequence[float | None]]


def fake_document(
    scores: Scores,
    *,
    judge: str | None = "refusal_prefix",
    key: str = "p_harmful",
    behavior: str = "b0",
    harmful: bool = True,
    reference: str | None = None,
    model: str = "toy",
    attack: str = "gcg",
    options: Mapping[str, Any] | None = None,
    dataset: str = "starter_harmful",
    defense: str | None = None,
    seed: int = 0,
    losses: Sequence[float | None] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
    queries: int = 10,
    flops: int = 1000,
    seconds: float = 1.0,
    timing: str = "shared",
) -> dict[str, Any]:
    """One joined run document of one behavior.

    Args:
        scores: the judge's value per step and completion; None is unscored.
        judge: judge id; None leaves the run unjudged.
        key: score key.
        behavior: behavior id; `harmful` and `reference` are facts about it.
        harmful: see `behavior`.
        reference: see `behavior`.
        model: facts of the setting, as are `attack`, `options`, `dataset`, `defense`, `seed`.
        attack: see `model`.
        options: see `model`.
        dataset: see `model`.
        defense: see `model`.
        seed: see `model`.
        losses: per step.
        texts: completions per step; made up where not given.
        queries: search queries of each step.
        flops: search FLOPs of each step; a completion costs a tenth of it.
        seconds: search seconds of each step.
        timing: `exclusive` for seconds that count.
    """
    steps = []
    for i, row in enumerate(scores):
        said = list(texts[i]) if texts else [f"answer {k} at step {i}" for k in range(len(row))]
        steps.append(_step(i, row, said, judge, key, (queries, flops, seconds)))
        steps[-1].loss = losses[i] if losses else None
    ledgers = {
        "optimization": {"model": {"queries": queries * len(steps), "flops": flops * len(steps)}},
        "sampling": {
            "model": {
                "queries": sum(map(len, scores)),
                "flops": sum(map(len, scores)) * (flops // 10),
            }
        },
    }
    config = {
        "attack": {"name": attack, "version": 1, "options": dict(options or {})},
        "models": [{"identity": {"weights": model, "template": "t0", "system": ""}}],
        "defense": [{"name": defense, "version": 1, "options": {}}] if defense else [],
        "fit": {"dataset": dataset, "content_hash": "0", "ids": [behavior], "keys": [behavior]},
        "generation": {"max_new_tokens": 32, "temperature": 0.0},
        "budget": {},
        "seed": seed,
    }
    facts: dict[str, Any] = {
        "id": behavior,
        "goal": f"goal of {behavior}",
        "harmful": harmful,
        "category": "made up",
        "conversation": [{"role": "user", "content": f"prompt of {behavior}"}],
    }
    if reference is not None:
        facts["reference"] = reference
    total = seconds * len(steps)
    run = BehaviorRun(
        behavior=facts, original_prompt=facts["conversation"], steps=steps, total_time=total
    )
    return RunDocument(
        run_id=stable_hash(config),
        config=config,
        resolved={
            "models": [{"name": model}],
            "overrides": [f"model={model}", f"attack={attack}"],
            "amounts": {"timing": timing},
        },
        ledgers=ledgers,
        runs=[run],
        total_time=run.total_time,
    ).model_dump(mode="json")


def _step(
    number: int,
    row: Sequence[float | None],
    texts: list[str],
    judge: str | None,
    key: str,
    cost: tuple[int, int, float],
) -> StepRecord:
    queries, flops, seconds = cost
    return StepRecord(
        step=number,
        model_input=[{"role": "user", "content": f"input at step {number}"}],
        model_completions=texts,
        completions=[CompletionRecord(sample=k) for k in range(len(texts))],
        scores={judge: {key: list(row)}} if judge else {},
        flops=flops,
        time_taken=seconds,
        ledgers={
            "optimization": {"model": {"queries": queries, "flops": flops}},
            "sampling": {"model": {"queries": len(row), "flops": len(row) * (flops // 10)}},
        },
    )
