"""What the guard reads, what it withholds, and what happens where it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adversariallm.core.budget import Usage
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Supplies, Verdict
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Message, ModelInput, Reply
from adversariallm.defenses._kit.replies import WITHHELD
from adversariallm.defenses.guard import Config, wrap
from adversariallm.models.fakes import ScriptedModel

GREEDY = GenerationConfig()
SPENT = Usage(queries=1, flops=3)


class Reads:
    """Scores the last message: 1 for `bad`, 0.5 for `odd`, nothing for `broken`, else 0."""

    threshold = 0.5

    def __init__(self) -> None:
        self.seen: list[Conversation] = []

    def verdicts(self, conversations: Sequence[Conversation]) -> list[Verdict]:
        self.seen += conversations
        return [self._verdict(c[len(c) - 1].content) for c in conversations]

    def _verdict(self, text: str) -> Verdict:
        if "broken" in text:
            return Verdict(None, "unparsable", SPENT)
        return Verdict(1.0 if "bad" in text else 0.5 if "odd" in text else 0.0, None, SPENT)


ANSWERS = {
    "fine": "good", "bad question": "good", "asks for": "bad answer", "silent": "",
    "odd": "good", "broken question": "good", "breaks": "broken answer", "*": "good",
}  # fmt: skip


def guarded(judge: Reads | None = None, script: Any = ANSWERS, **options: Any) -> Any:
    supplies = Supplies(judges={"harmbench": judge or Reads()})
    return wrap(ScriptedModel(script), Config(judge="harmbench", **options), supplies)


def ask(model: Any, *prompts: Any) -> list[Reply]:
    items = [Conversation.user(p) if isinstance(p, str) else p for p in prompts]
    replies: list[Reply] = model.generate(items, GREEDY, [Rng.root(0)] * len(items))
    return replies


@pytest.mark.parametrize(
    ("reads", "withheld"),
    [
        ("input", [False, True, False]),
        ("output", [False, False, True]),
        ("both", [False, True, True]),
    ],
)
def test_it_reads_the_question_the_answer_or_both(reads: str, withheld: list[bool]) -> None:
    model = guarded(reads=reads)
    replies = ask(model, "fine", "bad question", "asks for")
    assert [r.text == WITHHELD for r in replies] == withheld
    assert [r.finish_reason == "content_filter" for r in replies] == withheld
    assert all(r.error is None for r in replies)
    assert len(model.model.calls) == (3 if reads == "output" else 2)


def test_a_withheld_answer_is_kept_beside_the_refusal() -> None:
    [reply] = ask(guarded(refusal="no"), "asks for")
    assert (reply.text, reply.undefended) == ("no", "bad answer")
    [mark] = reply.raw["defense"]
    assert mark == {
        "name": "guard", "withheld": "output", "scores": {"input": 0.0, "output": 1.0}
    }  # fmt: skip


def test_its_own_threshold_holds_unless_another_is_given() -> None:
    assert ask(guarded(reads="input"), "odd")[0].text == WITHHELD
    assert ask(guarded(reads="input", threshold=0.51), "odd")[0].text == "good"


@pytest.mark.parametrize(("prompt", "reads"), [("broken question", "input"), ("breaks", "output")])
def test_a_guard_that_fails_withholds_and_the_answer_is_never_scored(
    prompt: str, reads: str
) -> None:
    [reply] = ask(guarded(reads=reads), prompt)
    assert reply.text == WITHHELD
    assert reply.error == "defense:guard:unparsable"
    assert reply.finish_reason == "error"
    assert reply.raw["defense"][0]["withheld"] == reads


def test_verdicts_are_booked_on_the_defense() -> None:
    script = [Reply("good", usage=Usage(queries=1, flops=50))]
    [reply] = ask(guarded(script=script), "fine")
    assert reply.usage == Usage(queries=1, flops=50)
    assert reply.defense_usage == SPENT + SPENT
    [stopped] = ask(guarded(script=script), "bad question")
    assert stopped.usage == Usage(queries=1)
    assert stopped.defense_usage == SPENT


def test_blank_and_failed_answers_are_handed_on_unread() -> None:
    judge = Reads()
    assert ask(guarded(judge, reads="output"), "silent")[0].text == ""
    [reply] = ask(guarded(judge, [Reply("bad", error="timeout")], reads="output"), "fine")
    assert reply.error == "timeout"
    assert judge.seen == []


def test_it_reads_the_whole_conversation_with_the_prefill() -> None:
    judge = Reads()
    talk = Conversation((Message("user", "a"), Message("assistant", "b"), Message("user", "fine")))
    ask(guarded(judge), ModelInput(talk, prefill="Sure, "))
    question, answer = judge.seen
    assert [m.content for m in question] == ["fine", "fine"]
    assert [m.content for m in answer] == ["a", "b", "fine", "Sure, good"]


def test_the_batch_changes_nothing() -> None:
    prompts = ["fine", "bad question", "asks for", "broken question"]
    together = ask(guarded(), *prompts)
    assert together == [ask(guarded(), p)[0] for p in prompts]


def test_a_judge_that_would_let_nothing_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="measures compliance: it would withhold every answer"):
        Config(judge="refusal_prefix")
    with pytest.raises(ValueError, match="unknown judge"):
        Config(judge="lama_guard_3")
    for threshold in (0.0, 1.5):
        with pytest.raises(ValueError, match="Input should be"):
            Config(threshold=threshold)
