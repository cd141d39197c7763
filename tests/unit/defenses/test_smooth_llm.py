"""Perturbations, the vote, the costs, and the bound against enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import floor
from typing import Any

import pytest

from adversariallm.core.budget import Usage
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Supplies, Verdict
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses._kit.perturb import ALPHABET, Perturbation, certified_success, perturb
from adversariallm.defenses.smooth_llm import Config, wrap
from adversariallm.models.fakes import ScriptedModel

GREEDY = GenerationConfig(max_new_tokens=8)
TEXT = "0123456789" * 5


class Says:
    """A judge that calls answers with `yes` in them jailbroken."""

    threshold = 0.5

    def __init__(self) -> None:
        self.read: list[Conversation] = []

    def verdicts(self, conversations: Sequence[Conversation]) -> list[Verdict]:
        self.read += conversations
        rows = [c[len(c) - 1].content for c in conversations]
        return [
            Verdict(None if "?" in row else float("yes" in row), usage=Usage(flops=7))
            for row in rows
        ]


def smoothed(script: Any, judge: Says | None = None, **options: Any) -> Any:
    supplies = Supplies(judges={"refusal_prefix": judge or Says()})
    return wrap(ScriptedModel(script), Config(**options), supplies)


def ask(model: Any, count: int = 1, seed: int = 0) -> list[Reply]:
    talks = [Conversation.user(f"{TEXT} {i}") for i in range(count)]
    replies: list[Reply] = model.generate(
        talks, GREEDY, [Rng.root(seed).child(i) for i in range(count)]
    )
    return replies


@pytest.mark.parametrize("kind", ["swap", "insert", "patch"])
def test_a_perturbation_changes_its_share_and_nothing_else(kind: Perturbation) -> None:
    for share, seed in itertools.product((0.0, 0.03, 0.1, 0.5, 1.0), range(20)):
        changed = perturb(TEXT, kind, share, Rng.root(seed).python())
        count = floor(len(TEXT) * share)
        if kind == "insert":
            assert len(changed) == len(TEXT) + count
            kept = iter(changed)
            assert all(c in kept for c in TEXT)  # the text is a subsequence
            continue
        places = [i for i, (a, b) in enumerate(zip(TEXT, changed, strict=True)) if a != b]
        assert len(places) <= count
        if kind == "patch" and places:
            assert places[-1] - places[0] < count
        assert set(changed) <= set(ALPHABET)


def test_perturbing_swaps_as_many_characters_as_it_should_on_average() -> None:
    draws = [perturb(TEXT, "swap", 0.2, Rng.root(s).python()) for s in range(400)]
    mean = sum(sum(a != b for a, b in zip(TEXT, d, strict=True)) for d in draws) / len(draws)
    assert mean == pytest.approx(10 * (len(ALPHABET) - 1) / len(ALPHABET), abs=0.1)


def votes(yes: int, of: int) -> Any:
    """A script whose answers say yes for `yes` of the copies, told apart by their streams."""

    def answer(conversation: Conversation, rng: Rng) -> str:
        assert rng.path[-3:-1] == ("smooth_llm", "copy")
        return f"yes {rng.path[-1]}" if int(rng.path[-1]) < yes else f"no {rng.path[-1]}"

    return answer


@pytest.mark.parametrize(
    ("yes", "gamma", "jailbroken"),
    [(0, 0.5, False), (5, 0.5, False), (6, 0.5, True), (3, 0.2, True), (2, 0.2, False)],
)
def test_the_answer_handed_on_agrees_with_the_vote(
    yes: int, gamma: float, jailbroken: bool
) -> None:
    [reply] = ask(smoothed(votes(yes, 10), gamma=gamma))
    assert reply.text.startswith("yes" if jailbroken else "no")
    [mark] = reply.raw["defense"]
    assert mark["name"] == "smooth_llm"
    assert (mark["copies"], mark["jailbroken"]) == (10, yes)
    assert reply.undefended is None


def test_which_of_the_agreeing_answers_is_drawn_from_the_stream() -> None:
    texts = {ask(smoothed(votes(0, 10)), seed=s)[0].text for s in range(30)}
    assert len(texts) > 4
    assert ask(smoothed(votes(0, 10)), seed=3) == ask(smoothed(votes(0, 10)), seed=3)


def test_the_model_is_asked_once_for_all_copies_and_the_batch_changes_nothing() -> None:
    calls: list[int] = []

    class Counting(ScriptedModel):
        def generate(self, inputs: Any, *rest: Any, **more: Any) -> list[Reply]:
            calls.append(len(inputs))
            return super().generate(inputs, *rest, **more)

    supplies = Supplies(judges={"refusal_prefix": Says()})
    echo = lambda talk, rng: talk[0].content  # noqa: E731
    model = wrap(Counting(echo), Config(copies=4), supplies)
    together = ask(model, 3)
    assert calls == [12]
    alone = model.generate([Conversation.user(f"{TEXT} 2")], GREEDY, [Rng.root(0).child(2)])
    assert alone == together[2:]


def test_every_copy_is_perturbed_on_its_own_and_the_judge_reads_the_copy() -> None:
    judge = Says()
    model = smoothed(lambda talk, rng: talk[0].content, judge, copies=6)
    ask(model)
    prompts = [c[0].content for c in judge.read]
    assert len(set(prompts)) == 6
    assert all(p != f"{TEXT} 0" for p in prompts)


def test_costs_of_the_other_copies_and_of_the_judge_are_the_defenses() -> None:
    script = [Reply("no", usage=Usage(queries=1, flops=100))]
    [reply] = ask(smoothed(script, copies=5))
    assert reply.usage == Usage(queries=1, flops=100)
    assert reply.defense_usage == Usage(queries=4, flops=400 + 5 * 7)


def test_failed_and_unread_copies_do_not_vote() -> None:
    def answer(conversation: Conversation, rng: Rng) -> str | Reply:
        k = int(rng.path[-1])
        return Reply("yes", error="timeout") if k < 3 else "?" if k == 3 else "no"

    [reply] = ask(smoothed(answer, copies=5))
    assert (reply.text, reply.error) == ("no", None)
    assert reply.raw["defense"][0]["copies"] == 1
    [reply] = ask(smoothed([Reply("", error="timeout")], copies=3))
    assert reply.error == "timeout"


@pytest.mark.parametrize("wrong", [{"q": 0}, {"q": 1.1}, {"copies": 0}, {"gamma": 1.0}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Input should be"):
        Config(**wrong)


def enumerated(
    kind: str, copies: int, changed: int, length: int, suffix: int, unstable: int, gamma: float
) -> float:
    """The same probability by listing every draw over a binary alphabet."""
    if kind == "swap":
        places = list(itertools.combinations(range(length), changed))
    else:
        places = [tuple(range(s, s + changed)) for s in range(length - changed + 1)]
    fails = total = 0
    for place in places:
        for letters in itertools.product((0, 1), repeat=changed):
            differing = sum(
                letter for at, letter in zip(place, letters, strict=True) if at >= length - suffix
            )
            fails += differing >= unstable
            total += 1
    chance = fails / total
    won = 0.0
    for outcome in itertools.product((True, False), repeat=copies):  # True: this copy is safe
        if (copies - sum(outcome)) / copies <= gamma:
            won += chance ** sum(outcome) * (1 - chance) ** (copies - sum(outcome))
    return won


@pytest.mark.parametrize("kind", ["swap", "patch"])
@pytest.mark.parametrize("gamma", [0.5, 0.25])
@pytest.mark.parametrize(
    ("copies", "length", "suffix", "unstable", "share"),
    [(1, 6, 3, 1, 0.5), (3, 6, 3, 2, 0.5), (4, 7, 4, 2, 0.6), (5, 5, 5, 3, 1.0), (4, 8, 2, 2, 0.3)],
)
def test_the_bound_is_what_enumeration_gives(
    kind: Any, gamma: float, copies: int, length: int, suffix: int, unstable: int, share: float
) -> None:
    found = certified_success(
        copies=copies, share=share, length=length, suffix=suffix, unstable=unstable, kind=kind,
        gamma=gamma, alphabet=2,
    )  # fmt: skip
    changed = floor(length * share)
    wanted = enumerated(kind, copies, changed, length, suffix, unstable, gamma)
    assert found == pytest.approx(wanted, abs=1e-12)


def test_more_copies_help_a_vote_that_is_right_more_often_than_not() -> None:
    facts: Any = {"share": 0.1, "length": 200, "suffix": 100, "unstable": 5}
    few, many = (certified_success(copies=n, **facts) for n in (1, 11))
    assert 0.9 < few < many <= 1
    with pytest.raises(ValueError, match="suffix=300"):
        certified_success(copies=1, **{**facts, "suffix": 300})
