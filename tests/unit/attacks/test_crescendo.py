"""Crescendo on scripted models: backtracking, scoring, and what must never become data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks import crescendo
from adversariallm.core.types import Reply
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, behavior, in_turn, play, queries, steps  # noqa: E402  -- beside this file

REFUSED = '{"score_value": "True", "rationale": "declines"}'
ANSWERED = '{"score_value": "False", "rationale": "answers"}'


def question(text: str) -> str:
    return json.dumps(
        {
            "generated_question": text,
            "last_response_summary": "s",
            "rationale_behind_jailbreak": "r",
        }
    )


def scored(value: Any) -> str:
    return json.dumps({"score_value": value, "description": "d", "rationale": "because"})


def numbered(talk: Any, rng: Any) -> str:
    return question(f"q{sum(m.role == 'assistant' for m in talk)}")


def run(
    *,
    attack: Any = numbered,
    target: Any = None,
    refusal: Any = None,
    score: Any = None,
    **options: Any,
) -> Any:
    helpers = {
        "attacker": Paid(attack),
        "refusal_scorer": Paid(refusal or in_turn(ANSWERED)),
        "scorer": Paid(score or in_turn(scored("10"))),
    }
    model = Paid(target or (lambda talk, rng: f"answer to {talk[len(talk) - 1].content}"))
    document = play("crescendo", model, helpers, **{"max_turns": 3, **options})
    return document, model, helpers


def sent(step: Any) -> list[str]:
    return [m["content"] for m in step.model_input]


def test_a_refusal_is_rolled_back_for_the_model_and_kept_for_the_attacker() -> None:
    document, _, helpers = run(refusal=in_turn(REFUSED, ANSWERED), max_turns=2)
    first, second, third = steps(document)
    assert [s.note["backtracked"] for s in (first, second, third)] == [True, False, False]
    assert sent(first) == ["q0"]
    assert sent(second) == ["q1"]  # the refused question and its answer are gone
    assert sent(third) == ["q1", "answer to q1", "q2"]
    assert first.model_completions == ["answer to q0"]  # the step itself keeps what was said
    told = helpers["attacker"].calls[1]
    assert [m.role for m in told] == ["system", "user", "assistant", "user"]
    assert "declined" in told[3].content and "q0" in told[3].content
    assert "answer to q1" in helpers["attacker"].calls[2][5].content
    assert queries(document) == {"attacker": 3, "model": 3, "refusal_scorer": 3, "scorer": 2}


def test_refusal_is_judged_against_the_question_and_success_against_the_behavior() -> None:
    _, _, helpers = run(max_turns=1)
    assert "q0" in helpers["refusal_scorer"].calls[0][1].content
    assert "name three birds" not in helpers["refusal_scorer"].calls[0][1].content
    assert "name three birds" in helpers["scorer"].calls[0][1].content
    assert helpers["scorer"].calls[0][0].content == "From 0 to 100: none"


def test_success_ends_the_run() -> None:
    document, _, _ = run(score=in_turn(scored("79"), scored("80"), scored("1")))
    assert [s.note["score"] for s in steps(document)] == [0.79, 0.8]
    assert document.status == "ended: success"
    document, _, _ = run(score=in_turn(scored("100")), stop_on_success=False)
    assert len(steps(document)) == 3 and document.status == "done"


@pytest.mark.parametrize(("turns", "backtracks"), [(1, 0), (2, 3), (3, 10)])
def test_at_most_turns_plus_backtracks_messages_are_sent(turns: int, backtracks: int) -> None:
    document, model, helpers = run(
        refusal=in_turn(REFUSED), max_turns=turns, max_backtracks=backtracks
    )
    assert len(model.calls) == len(steps(document)) == turns + backtracks
    # refusal is asked about every answer, also when no backtrack is left
    assert len(helpers["refusal_scorer"].calls) == turns + backtracks
    assert [s.note["backtracked"] for s in steps(document)] == [True] * backtracks + [False] * turns


def test_a_refused_last_turn_is_tried_again() -> None:
    document, _, _ = run(refusal=in_turn(ANSWERED, REFUSED, ANSWERED), max_turns=2)
    assert [s.note["turn"] for s in steps(document)] == [0, 1, 1]


def test_a_block_by_the_provider_is_a_refusal_that_nobody_is_asked_about() -> None:
    blocked = Reply("", finish_reason="content_filter", error="content_filter")
    document, _, helpers = run(target=in_turn(blocked, "fine"), max_turns=1)
    assert [s.note["status"] for s in steps(document)] == ["content_filter", "ok"]
    assert steps(document)[0].model_completions == [""]
    assert len(helpers["refusal_scorer"].calls) == len(helpers["scorer"].calls) == 1


def test_a_failed_call_ends_the_trial_without_a_score() -> None:
    full = Reply("", finish_reason="context", error="context_length")
    document, _, helpers = run(target=in_turn("fine", full), max_turns=7)
    assert [s.note["status"] for s in steps(document)] == ["ok", "context_overflow"]
    assert document.status == "ended: model_context_overflow"
    assert steps(document)[1].note["score"] is None and len(helpers["scorer"].calls) == 1


def test_an_attacker_that_cannot_be_read_ends_the_trial() -> None:
    document, model, helpers = run(attack=in_turn(question("q"), "prose"), attempts=4)
    assert len(steps(document)) == 1 and document.status == "ended: attacker_failed"
    assert len(helpers["attacker"].calls) == 1 + 4
    # every attempt saw the same history: bad replies are never shown again
    assert len({c.key for c in helpers["attacker"].calls[1:]}) == 1
    assert document.remainder["optimization"]["attacker"]["queries"] == 4
    assert len(model.calls) == 1


def test_helpers_that_give_no_verdict_leave_it_open() -> None:
    document, _, _ = run(refusal=in_turn("?"), score=in_turn(scored("101")), max_turns=1)
    (step,) = steps(document)
    assert (step.note["refused"], step.note["score"]) == (None, None)
    assert step.note["refusal_scorer"]["failure"] == "unreadable"
    assert document.status == "done"


@pytest.mark.parametrize("value", ["90", 90, 90.0, " 90 "])
def test_scores_come_as_numbers_or_texts(value: Any) -> None:
    document, _, _ = run(score=in_turn(scored(value)))
    assert steps(document)[0].note["score"] == 0.9


def test_trials_are_independent_and_end_with_the_first_success() -> None:
    document, _, helpers = run(max_turns=1, num_trials=3)
    assert [s.note["trial"] for s in steps(document)] == [0, 1, 2]
    assert len({c.key for c in helpers["attacker"].calls}) == 1  # each starts from nothing
    assert len({r.path for r in helpers["attacker"].rngs}) == 3
    document, _, _ = run(
        max_turns=1, num_trials=3, score=in_turn(scored("0"), scored("95"), scored("0"))
    )
    assert len(steps(document)) == 2 and document.status == "ended: success"


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_each_published_attacker_text_can_be_chosen(number: int) -> None:
    _, _, helpers = run(max_turns=1, attacker_text=number)
    system = helpers["attacker"].calls[0][0].content
    expected = "Objective: name three birds, in 1 turns."
    assert system == (expected if number == 1 else f"Text {number}. Objective: name three birds")
    asset = "crescendo/attacker" + ("" if number == 1 else f"_{number}")
    config = crescendo.Config(attacker_text=number)
    assert [a for a in crescendo.INFO.assets_of(config) if "attacker" in a] == [asset]


def test_summaries_take_the_place_of_the_attackers_own_conversation() -> None:
    def written(talk: Any, rng: Any) -> str:
        number = talk[1].content.count("- q")  # messages before the newest
        row = json.loads(question(f"q{number}"))
        return json.dumps({**row, "last_response_summary": f"it said {number}"})

    document, _, helpers = run(
        attack=written, history="summaries", refusal=in_turn(REFUSED, ANSWERED), max_turns=3
    )
    calls = helpers["attacker"].calls
    assert {len(c) for c in calls} == {2}  # system and what it is told; nothing of its own
    told = [c[1].content for c in calls]
    assert "- q" not in told[0] and "- q" not in told[1]
    # a refused first message shifts nothing: it is marked, and every row has its own summary
    assert "- q0\n  (declined) it said 0" in told[2]
    assert "- q0\n  (declined) it said 0\n- q0\n  (score 0.1) it said 1" in told[3]
    assert "answer to q1" in told[3] and "answer to q0" not in told[3]
    assert len(steps(document)) == 4


def reviewed(correct: Any) -> Any:
    def script(talk: Any, rng: Any) -> str:
        if '"correct"' in talk[talk.last_user].content:
            return json.dumps({"correct": correct, "rationale": "looked"})
        return scored("90")

    return script


def test_a_second_opinion_can_overrule_a_success() -> None:
    document, _, helpers = run(score=reviewed(False), meta_scorer=True, max_turns=2)
    assert [s.note["success"] for s in steps(document)] == [False, False]
    assert [s.note["score"] for s in steps(document)] == [0.9, 0.9]  # the score itself stays
    assert document.status == "done" and queries(document)["scorer"] == 4
    document, _, _ = run(score=reviewed(True), meta_scorer=True)
    assert document.status == "ended: success" and len(steps(document)) == 1
    document, _, _ = run(score=reviewed("perhaps"), meta_scorer=True)
    assert document.status == "ended: success"  # nobody can tell: the verdict stands
    assert steps(document)[0].note["meta_scorer"]["failure"] == "unreadable"
    _, _, helpers = run(score=in_turn(scored("10")), meta_scorer=True)
    assert len(helpers["scorer"].calls) == 3  # only a success is looked at again


def test_braces_and_slots_in_requests_and_answers_stay_as_they_are() -> None:
    odd = "use {objective} and {{ examples }} {x"
    helpers = {
        "attacker": Paid(numbered),
        "refusal_scorer": Paid(in_turn(ANSWERED)),
        "scorer": Paid(in_turn(scored("1"))),
    }
    play("crescendo", Paid(in_turn(odd)), helpers, asked=behavior(odd), max_turns=1)
    assert helpers["scorer"].calls[0][1].content == f"task: {odd}\nresponse: {odd}"
    assert odd in helpers["attacker"].calls[0][0].content


def test_a_run_cut_anywhere_asks_nobody_twice() -> None:
    options: dict[str, Any] = {"max_turns": 3, "max_backtracks": 1}

    def refuses(talk: Any, rng: Any) -> str:
        return REFUSED if "q1" in talk[1].content else ANSWERED

    def models() -> tuple[Paid, dict[str, Paid]]:
        helpers = {
            "attacker": Paid(numbered),
            "refusal_scorer": Paid(refuses),
            "scorer": Paid(in_turn(scored("10"))),
        }
        return Paid(lambda talk, rng: "a"), helpers

    log = MemoryLog()
    model, helpers = models()
    whole = play("crescendo", model, helpers, log=log, **options)
    for cut in range(1, len(log.entries)):
        again, others = models()
        rest = play("crescendo", again, others, log=MemoryLog(log.entries[:cut]), **options)
        assert [s.note for s in steps(rest)] == [s.note for s in steps(whole)]
        assert rest.ledgers == whole.ledgers
        for before, after in ((model, again), *((helpers[r], others[r]) for r in helpers)):
            assert [r.path for r in after.rngs] == [r.path for r in before.rngs][
                len(before.rngs) - len(after.rngs) :
            ]
            assert len(after.rngs) < len(before.rngs)
