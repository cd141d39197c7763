"""REINFORCE-GCG as a search: whose rewards a step records, and what never leaks or shifts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks import gcg_reinforce
from adversariallm.attacks._kit import proposals
from adversariallm.attacks._kit.reinforce import (
    leave_one_out,
    position_weights,
    selection_weights,
    token_rewards,
)
from adversariallm.core.budget import Meter
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, ModelInput
from adversariallm.models.metered import MeteredModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import LengthJudge, behaviors, run  # noqa: E402

Verdict = Callable[[str, str], float | None]


class Recording:
    """A judge by a function of goal and answer, which remembers what it was asked."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked: list[tuple[str, str]] = []

    def rewards(self, conversations: Any, contexts: Any) -> list[float | None]:
        pairs = [(talk[0].content, talk[1].content) for talk in conversations]
        assert [c["goal"] for c in contexts] == [goal for goal, _ in pairs]
        self.asked += pairs
        return [self.verdict(goal, answer) for goal, answer in pairs]


def judged(judge: Any, behavior: Behavior, **rest: Any) -> Any:
    given = {"judge": lambda meter: judge}
    return run("gcg_reinforce", rest.pop("model", None) or tiny_model("llama"), [behavior],
               given=given, **rest).runs[0].steps  # fmt: skip


def test_the_rewards_of_a_step_belong_to_its_suffix() -> None:
    model = tiny_model("llama")
    behavior = behaviors()[1]
    steps = judged(LengthJudge(), behavior, model=model)
    assert len(steps) == 3
    for step in steps:
        given = ModelInput(Conversation.user("x"), tuple(step.model_input_tokens))
        (reply,) = model.generate([given], GenerationConfig(max_new_tokens=12), [Rng.root(0)])
        talk = Conversation.user(behavior.goal).append("assistant", reply.text)
        assert [step.note["rewards"]["greedy"]] == LengthJudge().rewards([talk], [{}])


def test_only_this_behaviors_goal_is_judged_and_the_target_is_no_completion() -> None:
    judge = Recording(lambda goal, answer: len(set(answer)) / 200)
    judged(judge, behaviors()[0])
    first = len(judge.asked)
    judged(judge, behaviors()[2])
    goals = [goal for goal, _ in judge.asked]
    assert set(goals[:first]) == {behaviors()[0].goal}
    assert set(goals[first:]) == {behaviors()[2].goal}


def test_equal_answers_of_two_behaviors_get_their_own_rewards() -> None:
    """Rewards are kept with goal and answer, never with the answer alone."""
    by_goal = {behaviors()[0].goal: 0.3, behaviors()[2].goal: 0.6}
    judge = Recording(lambda goal, answer: by_goal[goal])
    for k, expected in ((0, 0.3), (2, 0.6)):
        for step in judged(judge, behaviors()[k]):
            assert step.note["rewards"]["greedy"] == expected


def test_a_sample_without_a_verdict_is_dropped_and_shifts_no_other() -> None:
    model = tiny_model("llama")
    behavior = behaviors()[0]
    plain = judged(LengthJudge(), behavior, model=model)[0].note["rewards"]
    greedy = greedy_text(model, behavior)

    def verdict(goal: str, answer: str) -> float | None:
        talk = Conversation.user(goal).append("assistant", answer)
        return None if answer == greedy else LengthJudge().rewards([talk], [{}])[0]

    steps = judged(Recording(verdict), behavior, model=model)
    assert "greedy" not in steps[0].note["rewards"]
    others = {k: v for k, v in plain.items() if k != "greedy"}
    assert {k: v for k, v in steps[0].note["rewards"].items() if k in others} == others
    assert len(steps) == 3


def greedy_text(model: Any, behavior: Behavior) -> str:
    """What the model says to the initial suffix."""
    start = judged(LengthJudge(), behavior, model=model)[0]
    given = ModelInput(Conversation.user("x"), tuple(start.model_input_tokens))
    (reply,) = model.generate([given], GenerationConfig(max_new_tokens=12), [Rng.root(0)])
    return str(reply.text)


class Asking:
    """A judge that asks a model, metered as the judge of this run."""

    def __init__(self, meter: Meter) -> None:
        self.model = MeteredModel(tiny_model("qwen2", seed=1), meter, role="judge")

    def rewards(self, conversations: Any, contexts: Any) -> list[float | None]:
        streams = [Rng.root(k) for k in range(len(conversations))]
        short = GenerationConfig(max_new_tokens=2)
        replies = self.model.generate(conversations, short, streams)
        return [sum(r.ids) % 100 / 100 for r in replies]


def test_judging_in_the_loop_is_search_booked_under_the_judge() -> None:
    document = run("gcg_reinforce", tiny_model("llama"), [behaviors()[0]], given={"judge": Asking})
    assert "judging" not in document.ledgers
    used = document.ledgers["optimization"]["judge"]["queries"]
    by_step = [s.ledgers["optimization"]["judge"]["queries"] for s in document.runs[0].steps]
    assert all(by_step) and sum(by_step) == used


@pytest.mark.parametrize("value", [0.9, None])
def test_rewards_that_tell_nothing_leave_the_plain_target_and_are_flagged(
    value: float | None,
) -> None:
    steps = judged(Recording(lambda goal, answer: value), behaviors()[0])
    if value is None:
        assert all(s.note["rewards"] == {} for s in steps)
    assert all("rewards_equal" in s.flags for s in steps[1:])
    assert len({s.loss for s in steps}) > 1


def test_the_targets_own_reward_is_a_signal_where_every_answer_gets_nothing() -> None:
    """Inside the target the seed counts at least 0.5, so its beginning beats the others."""
    steps = judged(Recording(lambda goal, answer: 0.0), behaviors()[0])
    assert set(steps[0].note["rewards"].values()) == {0.0}
    assert not any("rewards_equal" in s.flags for s in steps)


def test_a_target_longer_than_the_samples_runs() -> None:
    model = tiny_model("llama")
    target = model.chat.segments(behaviors()[0].conversation, target=behaviors()[0].target)
    assert len(target.target_ids) > 3
    steps = judged(LengthJudge(), behaviors()[0], options={"generation_length": 3})
    assert len(steps) == 3 and steps[-1].loss is not None


def test_a_sample_keeps_the_id_that_ended_it() -> None:
    planted = PlantedModel(secrets=1)
    log = MemoryLog()
    options = {"initial": "! ! !" + planted.best_suffix, "generation_length": 40, "num_steps": 0}
    judged(LengthJudge(), planted.behavior(), model=planted, options=options, log=log)
    (state,) = [e.record["state"] for e in log.entries if e.kind == "step"]
    (greedy,) = [s for s in state["samples"] if s["name"] == "greedy"]
    assert greedy["finished"] and greedy["ids"][-1] in planted.stop_ids


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({}, 40),  # nothing said so far: the second length
        ({20: 0.1, 128: 0.1}, 40),
        ({20: 0.5, 128: 0.1}, 40),  # rewarded up to 20: the next length
        ({20: 0.5, 40: 0.6, 128: 0.1}, 80),
        ({80: 0.9, 128: 0.1}, 128),
        ({128: 0.9}, 128),
    ],
)
def test_candidates_are_compared_on_the_first_length_after_the_last_rewarded_one(
    rewards: dict[int, float], expected: int
) -> None:
    sample = gcg_reinforce._Sample("greedy", [1] * 128, "x", rewards)
    seed = gcg_reinforce._Sample("seed", [1] * 128, "x", {128: 1.0})
    attack = gcg_reinforce.Attack(gcg_reinforce.Config())
    assert attack._compared_length(gcg_reinforce._At([1], [sample, seed])) == expected


def states(judge: Any, **options: Any) -> list[tuple[Any, Any]]:
    """The steps of a run, each with its state."""
    log = MemoryLog()
    steps = judged(judge, behaviors()[0], options=options, log=log)
    return list(
        zip(steps, (e.record["state"] for e in log.entries if e.kind == "step"), strict=True)
    )


def named(state: Any, name: str) -> Any:
    (found,) = [s for s in state["samples"] if s["name"] == name]
    return found


def test_a_rejected_step_draws_random_answers_anew_and_keeps_what_the_suffix_determines() -> None:
    """The start's greedy answer is beyond the threshold, those of other suffixes are not."""
    greedy = greedy_text(tiny_model("llama"), behaviors()[0])
    judge = Recording(lambda goal, answer: 0.9 if answer == greedy else 0.1)
    (start, first), *later = states(judge, num_steps=3)
    assert first["secured"] and first["memory"]["text"] == greedy
    drawn = [named(first, "random0")["ids"]]
    for step, state in later:
        assert step.note["accepted"] is False
        assert step.model_input_tokens == start.model_input_tokens
        for name in ("greedy", "seed"):
            assert named(state, name) == named(first, name)
        assert named(state, "memory")["ids"] == first["memory"]["ids"]
        drawn.append(named(state, "random0")["ids"])
    assert len({tuple(d) for d in drawn}) == len(drawn)


def test_a_greedy_reward_below_the_threshold_may_be_given_up_again() -> None:
    greedy = greedy_text(tiny_model("llama"), behaviors()[0])
    judge = Recording(lambda goal, answer: 0.9 if answer == greedy else 0.1)
    for step, state in states(judge, exploit_above=0.9)[1:]:
        assert step.note["accepted"] and not state["secured"]


def test_the_seed_is_the_target_continued_greedily_to_the_full_length() -> None:
    model = tiny_model("llama")
    behavior = behaviors()[0]
    target = list(model.chat.segments(behavior.conversation, target=behavior.target).target_ids)
    for step, state in states(LengthJudge(), num_steps=1):
        begun = ModelInput(behavior.conversation, (*step.model_input_tokens, *target))
        room = GenerationConfig(max_new_tokens=12 - len(target))
        (reply,) = model.generate([begun], room, [Rng.root(0)])
        assert named(state, "seed")["ids"] == target + list(reply.ids)


def test_the_remembered_answer_keeps_its_rewards_and_is_not_judged_again() -> None:
    class Restless:
        """Never gives an answer the same reward twice."""

        calls = 0

        def rewards(self, conversations: Any, contexts: Any) -> list[float | None]:
            start = self.calls
            self.calls += len(conversations)
            return [0.3 + (start + k) % 50 / 100 for k in range(len(conversations))]

    judge = Restless()
    found = states(judge, num_steps=3)
    memory, asked = None, 0
    for step, state in found:
        if memory is not None:
            assert named(state, "memory")["rewards"] == memory["rewards"]
            assert step.note["rewards"]["memory"] == memory["rewards"][str(len(memory["ids"]))]
        memory = state["memory"]
        assert memory is not None
        asked += sum(len(s["rewards"]) for s in state["samples"] if s["name"] != "memory")
    assert judge.calls == asked


def test_a_steps_metric_is_that_of_its_own_answers_and_the_lowest_names_the_best_step() -> None:
    model = tiny_model("llama")
    judge = LengthJudge()
    found = states(judge, num_steps=3)
    metrics = []
    for step, state in found:
        rewards = step.note["rewards"]
        fixed = [s for s in state["samples"] if not s["name"].startswith("random")]
        shares = selection_weights([s["name"] for s in fixed], rewards["greedy"]).tolist()
        table = token_rewards(
            [s["ids"] for s in state["samples"]],
            [{int(k): v for k, v in s["rewards"].items()} for s in state["samples"]],
            12,
        )
        rows = leave_one_out(table, 0.1)
        expected = 10 * (1 - rewards["greedy"])
        for sample, row in zip(state["samples"], rows, strict=True):
            if sample not in fixed:
                continue
            ids = sample["ids"]
            end = len(ids) - 1 if sample["finished"] and sample["name"] == "seed" else None
            weights = row[: len(ids)] * position_weights(ids, 12, end)
            nll = model.losses([step.model_input_tokens], [ids]).per_token[0]
            expected += shares[fixed.index(sample)] * float((weights * nll).sum())
        assert step.note["metric"] == pytest.approx(expected, abs=1e-4)
        metrics.append(expected)
        lowest = min(range(len(metrics)), key=metrics.__getitem__)
        assert step.note["best_step"] == lowest


@pytest.mark.parametrize("finite", [True, False])
def test_positions_are_even_and_without_a_gradient_uniform(
    monkeypatch: pytest.MonkeyPatch, finite: bool
) -> None:
    asked = []
    propose = proposals.propose

    def listening(slot: Any, scores: Any, allowed: Any, rng: Any, **rest: Any) -> Any:
        asked.append((scores is not None, rest["positions"]))
        return propose(slot, scores, allowed, rng, **rest)

    monkeypatch.setattr(proposals, "propose", listening)
    if not finite:
        monkeypatch.setattr(gcg_reinforce.Attack, "_token_scores", lambda *given: None)
    steps = judged(LengthJudge(), behaviors()[0])
    assert set(asked) == {(finite, "even" if finite else "uniform")}
    assert all(("gradient_not_finite" in s.flags) is not finite for s in steps[1:])


def test_a_verdict_that_is_no_number_is_no_verdict() -> None:
    steps = judged(Recording(lambda goal, answer: float("nan")), behaviors()[0])
    assert all(s.note["rewards"] == {} for s in steps)
