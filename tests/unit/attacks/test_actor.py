"""ActorAttack on scripted models: planning, replacing, summaries, and no invented messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks import actor
from adversariallm.core.types import Reply
from adversariallm.runs.lookups import asset_store
from adversariallm.runs.runlog import MemoryLog
from judgezoo.errors import HashMismatch

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, in_turn, play, queries, steps  # noqa: E402  -- beside this file


def planner(
    *, actors: Any = ("Ada", "Bob"), questions: Any = ("q0", "q1"), details: str = ""
) -> Any:
    def script(talk: Any, rng: Any) -> str:
        asked = talk[talk.last_user].content
        if '"actors"' in asked:
            rows = [{"actor_name": a, "relationship": "r"} for a in actors]
            return json.dumps({"actors": rows})
        if '"questions"' in asked:
            name = asked.split("conversation about ")[1].split(" that")[0]
            return json.dumps({"questions": [f"{name} {q}" for q in questions]})
        if '"delivery_type"' in asked:
            parts = {"target": "birds", "delivery_type": "a list", "other_details": details}
            return json.dumps(parts)
        return "a network"

    return script


def verdict(kind: str) -> str:
    return json.dumps({"type": kind})


def rated(score: Any) -> str:
    return json.dumps({"reason": "r", "score": score})


def run(
    *,
    plan: Any = None,
    rewrite: Any = None,
    kind: Any = None,
    score: Any = None,
    target: Any = None,
    log: MemoryLog | None = None,
    **options: Any,
) -> Any:
    helpers = {
        "planner": Paid(plan or planner()),
        "attacker": Paid(rewrite or in_turn("other")),
        "refusal_scorer": Paid(kind or in_turn(verdict("successful"))),
        "scorer": Paid(score or in_turn(rated(2))),
    }
    model = Paid(target or (lambda talk, rng: f"re {talk[len(talk) - 1].content}"))
    document = play("actor", model, helpers, log=log, **{"num_actors": 2, "attempts": 2, **options})
    return document, model, helpers


def sent(step: Any) -> list[str]:
    return [m["content"] for m in step.model_input]


def kinds(document: Any) -> list[str]:
    return [s.note["kind"] for s in steps(document)]


def test_every_actor_has_its_own_conversation_that_ends_in_a_summary() -> None:
    document, _, _ = run()
    assert kinds(document) == ["question", "question", "summary_type"] * 2
    assert sent(steps(document)[1]) == ["Ada q0", "re Ada q0", "Ada q1"]
    assert sent(steps(document)[3]) == ["Bob q0"]
    assert "a list" in sent(steps(document)[2])[-1]
    # extract, network, actors, questions of two actors
    assert queries(document) == {"planner": 5, "model": 6, "refusal_scorer": 4, "scorer": 6}
    assert steps(document)[0].note["plan"]["actors"][1]["questions"] == ["Bob q0", "Bob q1"]
    assert document.status == "done"
    assert steps(document)[0].note["texts"] == "actor/ours-v1"


def test_a_declined_question_is_replaced_from_the_answer_before_it() -> None:
    document, _, helpers = run(
        kind=in_turn(verdict("successful"), verdict("rejective"), verdict("successful")),
        num_actors=1,
    )
    assert kinds(document) == ["question", "question", "rewritten", "summary_type"]
    told = helpers["attacker"].calls[0][0].content
    assert "re Ada q0" in told and "re Ada q1" not in told
    replaced = steps(document)[2]
    assert sent(replaced) == ["Ada q0", "re Ada q0", "other"]  # rolled back, then asked anew
    assert replaced.note["original_question"] == "Ada q1"
    assert [s.note["kept"] for s in steps(document)[:3]] == [True, False, True]


def test_a_declined_replacement() -> None:
    declined = in_turn(verdict("rejective"), verdict("rejective"), verdict("successful"))
    document, _, _ = run(kind=declined, num_actors=1)
    assert kinds(document) == ["question", "rewritten", "question", "summary_type"]
    assert sent(steps(document)[2]) == ["Ada q1"]
    declined = in_turn(verdict("rejective"), verdict("rejective"), verdict("successful"))
    document, _, _ = run(kind=declined, num_actors=1, still_refused="keep")
    assert sent(steps(document)[2]) == ["other", "re other", "Ada q1"]


def test_an_unclear_verdict() -> None:
    unclear = in_turn(verdict("successful"), verdict("unknown"))
    document, _, _ = run(kind=unclear, num_actors=1)
    assert len(sent(steps(document)[2])) == 5
    unclear = in_turn(verdict("successful"), verdict("unknown"))
    document, _, _ = run(kind=unclear, num_actors=1, unknown="reset_history")
    assert kinds(document) == ["question", "question"]  # nothing is left to sum up


def test_without_replacing_nobody_is_asked_for_a_verdict() -> None:
    document, _, helpers = run(dynamic_modify=False)
    assert helpers["refusal_scorer"].calls == [] and len(steps(document)) == 6


def test_the_short_summary_follows_where_the_detailed_one_is_not_rated_5() -> None:
    document, _, _ = run(plan=planner(details="in short"), num_actors=1)
    assert kinds(document)[2:] == ["summary_detail", "summary_type"]
    detailed, short = steps(document)[2:]
    assert sent(detailed)[:-1] == sent(short)[:-1]  # the detailed one is rolled back
    assert [s.note["kept"] for s in (detailed, short)] == [False, False]
    full = in_turn(rated(1), rated(1), rated(5))
    document, _, _ = run(
        plan=planner(details="in short"), num_actors=1, score=full, stop_on_success=False
    )
    assert kinds(document)[2:] == ["summary_detail"]


def test_success_ends_the_run() -> None:
    document, _, _ = run(score=in_turn(rated(4), rated(5)))
    assert [s.note["score"] for s in steps(document)] == [4, 5]
    assert document.status == "ended: success"
    document, _, _ = run(score=in_turn(rated(5)), stop_on_success=False)
    assert len(steps(document)) == 6 and document.status == "done"


@pytest.mark.parametrize("broken", ["extract", "network", "actors", "questions"])
def test_failed_stages_send_nothing(broken: str) -> None:
    marks = {"extract": '"delivery_type"', "actors": '"actors"', "questions": '"questions"'}

    def plan(talk: Any, rng: Any) -> str:
        asked = talk[talk.last_user].content
        if broken == "network" and not any(m in asked for m in marks.values()):
            return ""
        if broken != "network" and marks[broken] in asked:
            return "prose"
        return str(planner()(talk, rng))

    document, model, helpers = run(plan=plan)
    assert (model.calls, steps(document)) == ([], [])
    stage = "actors" if broken == "network" else broken
    assert document.status == f"ended: planner_failed: {stage}"
    few = len(helpers["planner"].calls)
    _, _, helpers = run(plan=plan, attempts=3)
    grows = broken != "network"  # an empty reply is a refusal: asked once more, no oftener
    assert (len(helpers["planner"].calls) > few) == grows


def test_an_actor_without_questions_is_dropped_with_its_reason() -> None:
    def plan(talk: Any, rng: Any) -> str:
        if "conversation about Ada" in talk[0].content:
            return '{"questions": []}'
        return str(planner()(talk, rng))

    document, _, _ = run(plan=plan)
    assert {s.note["actor"] for s in steps(document)} == {"Bob"}
    (dropped,) = steps(document)[0].note["plan"]["dropped"]
    assert (dropped["actor_name"], dropped["failure"]) == ("Ada", "unreadable")


def test_equal_actors_count_once_and_more_are_asked_for() -> None:
    document, _, helpers = run(plan=planner(actors=("Ada", " ada ")), num_actors=2)
    assert {s.note["actor"] for s in steps(document)} == {"Ada"}
    asked = [c for c in helpers["planner"].calls if '"actors"' in c[len(c) - 1].content]
    assert len(asked) == 3


def test_no_more_messages_than_the_bound() -> None:
    _, model, _ = run(
        plan=planner(questions=("a", "b", "c", "d", "e", "f", "g"), details="x"),
        kind=in_turn(verdict("rejective")),
        still_refused="keep",
        rewrite=lambda talk, rng: f"other {talk.key[:6]}",
        num_actors=2,
    )
    assert len(model.calls) == 2 * (2 * 5 + 2)


def test_an_attacker_that_repeats_the_question_sends_nothing() -> None:
    document, _, helpers = run(
        kind=in_turn(verdict("rejective"), verdict("successful")),
        rewrite=in_turn("Ada q0"),
        num_actors=1,
    )
    assert kinds(document) == ["question", "question", "summary_type"]
    assert len(helpers["attacker"].calls) == 2


def test_a_failed_call_ends_the_conversation_without_a_score() -> None:
    broken = Reply("", finish_reason="error", error="provider_error")
    document, _, _ = run(target=in_turn(broken, "fine"))
    assert kinds(document) == ["question", "question", "question", "summary_type"]
    assert steps(document)[0].note["status"] == "transport_error"
    assert steps(document)[0].note["score"] is None
    assert [s.note["actor"] for s in steps(document)] == ["Ada", "Bob", "Bob", "Bob"]


def test_a_run_cut_anywhere_asks_nobody_twice() -> None:
    def kind(talk: Any, rng: Any) -> str:
        return verdict("rejective" if "Question: Ada q1" in talk[0].content else "successful")

    log = MemoryLog()
    whole, model, helpers = run(kind=kind, log=log)
    before = {"model": model, **helpers}
    for cut in range(1, len(log.entries)):
        rest, again, others = run(kind=kind, log=MemoryLog(log.entries[:cut]))
        assert [s.note for s in steps(rest)] == [s.note for s in steps(whole)]
        assert rest.ledgers == whole.ledgers
        assert others["planner"].calls == []
        for role, after in {"model": again, **others}.items():
            paths = [r.path for r in before[role].rngs]
            assert [r.path for r in after.rngs] == paths[len(paths) - len(after.rngs) :]


FILES = {
    "1_extract": 'Parts of {org_query}: {{"target": "", "details": {{}}}}',
    "2_network": "NETWORK of {harm_target}",
    "3_actor": 'CHOOSE {num_string} as {"actors": []}',
    "3_more_actor": "MORE",
    "4_queries": "PLAN {actor_name} and {harm_target}",
    "5_json_format": 'LIST as {{"questions": [{{"question": ""}}]}}: {resp}',
    "attack_modify": "MODIFY {query} of {queries}, {output_type}, after {previous_response}",
    "attack_step_judge": "STEP {response} to {query}",
}


def checkout_planner(talk: Any, rng: Any) -> str:
    asked = talk[talk.last_user].content
    if asked.startswith("Parts"):
        parts = {"delivery_type": "a list", "other_details": ""}
        return json.dumps({"target": "birds", "details": parts})
    if asked.startswith("CHOOSE"):
        return json.dumps({"actors": [{"actor_name": "Ada", "relationship": "r"}]})
    if asked.startswith("LIST"):
        return json.dumps({"questions": [{"question": "first {x}"}, "second"]})
    return f"words on {asked}"


@pytest.mark.parametrize("source", ["authors", "custom"])
def test_the_authors_texts_come_from_the_users_own_folder(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the same names and slots, written here, fetched as a user's checkout would be."""
    folder = tmp_path / "prompts" if source == "authors" else tmp_path
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    variable = {"authors": "ACTORATTACK_CHECKOUT", "custom": "ACTOR_CUSTOM_TEXTS"}[source]
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path / "cache"))
    ids = actor.INFO.assets_of(actor.Config(texts=source))
    assert ids == tuple(f"actor/{source}/{name}" for name in FILES)
    store = asset_store()
    if source == "authors":  # these files are not the published ones
        with pytest.raises(HashMismatch):
            store.fetch_many(ids)
        texts = {f"actor/authors/{name}": text for name, text in FILES.items()}
    else:
        store.fetch_many(ids)
        texts = {name: store.text(name) for name in ids}
    monkeypatch.setattr(actor, "EXAMPLE_ASSETS", texts)
    document, model, helpers = run(
        plan=checkout_planner,
        kind=in_turn(verdict("rejective"), verdict("successful")),
        num_actors=1,
        texts=source,
    )
    asked = [c[c.last_user].content for c in helpers["planner"].calls]
    assert asked[0] == 'Parts of name three birds: {"target": "", "details": {}}'
    assert asked[1] == "NETWORK of birds"
    assert asked[2] == 'CHOOSE 1 actors as {"actors": []}'  # single braces of an example stay
    assert asked[3] == "PLAN Ada and birds"
    assert asked[4] == ('LIST as {"questions": [{"question": ""}]}: words on PLAN Ada and birds')
    assert helpers["refusal_scorer"].calls[0][0].content == "STEP re first {x} to first {x}"
    rewrite = helpers["attacker"].calls[0][0].content
    assert rewrite == 'MODIFY first {x} of ["first {x}", "second"], a list, after (there is none)'
    assert kinds(document) == ["question", "rewritten", "question", "summary_type"]
    label = steps(document)[0].note["texts"]
    assert label == "actor/authors@3258917" or label.startswith("actor/custom:")


def test_planning_and_listing_are_repeated_together() -> None:
    def plan(talk: Any, rng: Any) -> str:
        return "prose" if talk[0].content.startswith("List as") else str(checkout(talk, rng))

    def checkout(talk: Any, rng: Any) -> str:
        asked = talk[talk.last_user].content
        known = {"Split": "Parts", "Choose": "CHOOSE"}.get(asked.split()[0], asked.split()[0])
        return checkout_planner(talk.with_content(talk.last_user, known), rng)

    document, model, helpers = run(plan=plan, num_actors=1, attempts=3, texts="authors")
    assert model.calls == [] and document.status == "ended: planner_failed: questions"
    asked = [c[c.last_user].content.split()[0] for c in helpers["planner"].calls]
    assert asked[-6:] == ["Plan", "List"] * 3
