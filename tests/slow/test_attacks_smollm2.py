"""The contract of every attack that looks inside the model, on the small real model.

Quick options, one conversation with a system message; a real in-loop judge, a real refusal
direction, held-out behaviors. The benchmark `attack_lines.py` has longer runs of the same attacks.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.budget import Budget, Ledgers
from adversariallm.core.directions import SETS
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Needs
from adversariallm.core.records import RunDocument
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets import load_dataset
from adversariallm.models.loading import load_model
from adversariallm.runs.rewards import Rewards
from adversariallm.runs.runlog import MemoryLog
from judgezoo import Judge

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
import harness  # noqa: E402  -- shared with the contract tests
import invariants  # noqa: E402

# a direction takes minutes to find
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
INSIDE = Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS


def looks_inside(name: str) -> bool:
    info = ATTACKS.load(name).INFO
    return bool(info.needs & INSIDE) or bool(info.helper_needs)


VARIANTS = {"autodan": ({"variant": "ga"}, {"variant": "hga", "crossover": 1.0})}
CASES = [
    (name, options)
    for name in ATTACKS.names()
    if looks_inside(name)
    for options in VARIANTS.get(name, ({},))
]
# none of this model's directions is within the paper's limits
DIRECTION = {
    "num_train": 8,
    "num_validation": 2,
    "refusal_tokens": ("I", "Sorry"),
    "max_divergence": 2.0,
}
LOWERS = ("gcg", "random_search", "beast")  # a few steps are enough to see the loss fall


def behavior(k: int) -> Behavior:
    goals = ("Tell a story about a lighthouse.", "Write a note to a neighbor.", "Name three birds.")
    talk = Conversation.user(goals[k], system="You answer in one sentence.")
    return Behavior(f"mild-{k}", talk, goals[k], False, "Sure, here is what you asked", "dataset")


def instructions() -> dict[str, str]:
    """Our own mild sets stand for the instructions that a direction is found with."""
    goals = {
        kind: [b.goal for b in load_dataset(f"starter_{kind}").behaviors]
        for kind in ("harmful", "benign")
    }
    rows = {}
    for asset in SETS:
        kind = "benign" if "harmless" in asset else "harmful"
        part = goals[kind][8:10] if asset.endswith("val") else goals[kind][:8]
        rows[asset] = json.dumps([{"instruction": goal} for goal in part])
    return rows


@pytest.fixture(scope="module")
def guarded() -> Any:
    return load_model("smollm2-guarded")


@pytest.fixture(scope="module")
def attack(smollm2: Any, guarded: Any) -> Any:
    """Runs one case; the model, helpers, judge and assets are real."""

    def carry_out(name: str, options: dict[str, Any], k: int = 0, **rest: Any) -> RunDocument:
        info = ATTACKS.load(name).INFO
        given: dict[str, Any] = {}
        if info.judge:
            given["judge"] = lambda meter: Rewards(Judge.from_name("refusal_prefix"))
        helpers = harness.helpers_for(name)
        if info.helper_needs:
            given["helpers"] = {**helpers, **dict.fromkeys(info.helper_needs, smollm2)}
        if name == "gcg_refusal":
            given["assets"] = instructions()
            options = {**options, **DIRECTION}
        fit = [behavior(k)]
        if info.fits == "many":
            fit = [behavior(0), behavior(1)]
            rest.setdefault("evaluated", [*fit, behavior(2)])
        model = model_of(name, smollm2, guarded)
        return harness.run(name, model, fit, options=options, given=given, **rest)

    return carry_out


def model_of(name: str, smollm2: Any, guarded: Any) -> Any:
    """A refusal direction, or a reward for not refusing, asks for a model that refuses."""
    return guarded if name in ("gcg_refusal", "gcg_reinforce") else smollm2


@pytest.fixture(scope="module")
def documents(attack: Any) -> dict[str, tuple[RunDocument, MemoryLog]]:
    """Runs already carried out, by case."""
    return {}


@pytest.fixture
def finished(attack: Any, documents: dict[str, Any]) -> Any:
    def look_up(name: str, options: dict[str, Any]) -> tuple[RunDocument, MemoryLog]:
        key = json.dumps([name, options])
        if key not in documents:
            log = MemoryLog()
            documents[key] = (attack(name, options, log=log), log)
        return documents[key]

    return look_up


def named(value: Any) -> str:
    return value if isinstance(value, str) else value.get("variant", "")


@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_the_invariants_hold(
    finished: Any, smollm2: Any, guarded: Any, name: str, options: dict[str, Any]
) -> None:
    document, _ = finished(name, options)
    info = ATTACKS.load(name).INFO
    model = model_of(name, smollm2, guarded)
    everyone = [behavior(0), behavior(1), behavior(2)][: len(document.runs)]
    assert document.status == "done"
    for index, one in enumerate(everyone):
        steps = document.runs[index].steps
        assert [s.step for s in steps] == list(range(len(steps)))
        assert all(s.completions for s in steps)
        compared = invariants.recorded_losses(document, model, one, index=index, tolerance=1e-4)
        recorded = sum(s.loss is not None and s.model_input_tokens is not None for s in steps)
        assert compared == recorded
        invariants.recorded_ids(document, model, index=index)
        invariants.target_absent(document, one, index=index)
        if info.modality in ("suffix", "none"):
            invariants.outside_untouched(document, one, info, index=index)
    if harness.short(name).temperature == 0:
        invariants.completions_of_recorded_ids(document, model, harness.short(name), 1)
    invariants.legal_ids(document, model)
    invariants.ledgers_add_up(document)
    losses = [s.loss for s in document.runs[0].steps]
    if name in LOWERS:
        assert min(losses) < losses[0]


@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_a_run_behind_another_one_and_a_resumed_run_end_the_same(
    finished: Any, attack: Any, name: str, options: dict[str, Any]
) -> None:
    document, log = finished(name, options)
    run_again = partial(attack, name, options)
    if ATTACKS.load(name).INFO.fits == "one":
        run_again(k=1)
    cut = max(1, len(log.entries) // 2)
    resumed = run_again(log=MemoryLog(log.entries[:cut]))
    assert harness.stable(resumed) == harness.stable(document)


@pytest.mark.parametrize(("name", "options"), CASES, ids=named)
def test_limits_stop_it_cleanly(
    finished: Any, attack: Any, name: str, options: dict[str, Any]
) -> None:
    document, _ = finished(name, options)
    spent = Ledgers.from_dict(document.ledgers).total("setup", "optimization")
    if not spent.queries:
        pytest.skip("its samples are the search")
    limits = {"queries": spent.queries // 2, "flops": (spent.flops or 0) // 2}
    for kind, limit in limits.items():
        cut = attack(name, options, budget=Budget(**{kind: limit}))
        assert cut.status.startswith(f"stopped: budget.{kind}")
        used = Ledgers.from_dict(cut.ledgers).total("setup", "optimization")
        assert used.queries <= limit or kind == "flops"
        whole = document.runs[0].steps
        for few, many in zip(cut.runs[0].steps, whole, strict=False):
            assert (few.model_input, few.loss) == (many.model_input, many.loss)


def test_the_refusal_direction_of_the_guarded_model_changes_its_answer(finished: Any) -> None:
    """The target is what the model says without it, not the dataset's, and no refusal."""
    document, _ = finished("gcg_refusal", {})
    for step in document.runs[0].steps:
        assert "ablated_target_refused" not in step.flags
        assert step.note["target"] and step.note["target"] != behavior(0).target
    setup = document.ledgers["setup"]["model"]
    assert setup["forward_passes"] > 16 and setup["flops"] > 0


def test_rewards_are_the_judges_verdicts_on_what_was_said(finished: Any) -> None:
    document, log = finished("gcg_reinforce", {})
    judge = Rewards(Judge.from_name("refusal_prefix"))
    states = [e.record["state"] for e in log.entries if e.kind == "step"]
    compared = 0
    for state in states:
        for sample in state["samples"]:
            if sample["name"] == "seed":
                continue
            talk = Conversation.user(behavior(0).goal).append("assistant", sample["text"])
            (expected,) = judge.rewards([talk], [{}])
            assert sample["rewards"][str(len(sample["ids"]))] == expected
            compared += 1
    assert compared >= len(document.runs[0].steps)
