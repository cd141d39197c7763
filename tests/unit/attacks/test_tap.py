"""TAP on scripted models: branching, both prunings, and what a failure costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from adversariallm.core.types import Reply

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, in_turn, play, queries, steps  # noqa: E402  -- beside this file


def attacker(talk: Any, rng: Any) -> str:
    prompt = f"p{rng.seed}"
    return json.dumps({"improvement": "i", "prompt": prompt})


def scorer(on_topic: Any, rating: Any) -> Any:
    """One model for both questions."""

    def script(talk: Any, rng: Any) -> str:
        asked = on_topic if "on topic" in talk[0].content else rating
        return str(asked(talk, rng) if callable(asked) else asked)

    return script


def run(
    *,
    attack: Any = attacker,
    target: Any = None,
    topic: Any = "[[YES]]",
    rating: Any = "[[3]]",
    **options: Any,
) -> Any:
    helpers = {"attacker": Paid(attack), "scorer": Paid(scorer(topic, rating))}
    model = Paid(target or (lambda talk, rng: f"re {talk[0].content}"))
    document = play(
        "tap", model, helpers, **{"depth": 3, "width": 2, "branching": 2, "attempts": 2, **options}
    )
    return document, model, helpers


def test_every_level_has_at_most_the_width_and_every_prompt_its_own_answer() -> None:
    document, model, helpers = run()
    assert [s.note["depth"] for s in steps(document)] == [1, 1, 2, 2, 3, 3]
    for step in steps(document):
        assert step.model_completions == [f"re {step.model_input[0]['content']}"]
    # level 1: one root; then two leaves, two rewritings each; each is asked about its topic
    assert queries(document) == {"attacker": 2 + 4 + 4, "model": 6, "scorer": 10 + 6}
    assert document.status == "done"
    cut = [d for s in steps(document) for d in s.note.get("dropped", [])]
    assert [d["why"] for d in cut] == ["width"] * 4
    sent = {c[0].content for c in model.calls}
    assert not sent & {d["prompt"] for d in cut}


def test_a_leaf_is_rewritten_from_its_own_past() -> None:
    document, _, helpers = run(width=1, branching=1, depth=4, keep_last=2)
    prompts = [s.model_input[0]["content"] for s in steps(document)]
    calls = helpers["attacker"].calls
    assert [len(c) for c in calls] == [2, 4, 6, 6]
    assert f"re {prompts[2]}" in calls[3][5].content
    assert [s.note["node"] for s in steps(document)] == [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]


def test_what_is_off_topic_is_never_sent() -> None:
    verdicts = in_turn("[[NO]]", "[[YES]]")
    document, model, _ = run(topic=verdicts, depth=1)
    assert len(model.calls) == 1
    (step,) = steps(document)
    assert step.note["on_topic"] is True
    assert [d["why"] for d in step.note["dropped"]] == ["off_topic"]
    document, model, _ = run(topic="[[NO]]")
    assert (document.status, model.calls, steps(document)) == ("ended: nothing_left", [], [])
    document, _, helpers = run(topic="[[NO]]", on_topic=False, depth=1)
    assert len(steps(document)) == 2 and len(helpers["scorer"].calls) == 2


def test_the_best_leaves_are_rewritten() -> None:
    seen: dict[str, int] = {}

    def rating(talk: Any, rng: Any) -> str:
        seen[talk[1].content.split("\n")[1]] = score = 2 + len(seen) % 7
        return f"[[{score}]]"

    document, _, _ = run(rating=rating, depth=2, width=4, branching=4)
    assert len(steps(document)) == 8
    document, _, helpers = run(rating=in_turn("[[2]]", "[[9]]"), depth=2, width=1, branching=1)
    assert "SCORE: 2" in helpers["attacker"].calls[1][3].content
    # width 1 with two children: the one that was kept by chance is the only leaf
    document, _, helpers = run(depth=2, width=1, branching=2)
    assert len(steps(document)) == 2 and len(helpers["attacker"].calls) == 4


def test_success_ends_after_its_level() -> None:
    document, _, _ = run(rating=in_turn("[[10]]", "[[1]]"))
    assert len(steps(document)) == 2 and document.status == "ended: success"
    document, _, _ = run(rating="[[10]]", stop_on_success=False)
    assert len(steps(document)) == 6 and document.status == "done"


def test_failures_drop_a_child_only() -> None:
    good = json.dumps({"improvement": "i", "prompt": "p"})
    document, _, helpers = run(attack=in_turn("x", "x", good), depth=1)
    (step,) = steps(document)
    assert step.note["node"] == [1]  # the second child keeps its place
    assert step.note["dropped"][0]["why"] == "attacker"
    assert step.note["dropped"][0]["attempts"] == 2
    document, _, helpers = run(topic="?", rating="?", depth=1, scorer_attempts=2)
    assert [s.note["score"] for s in steps(document)] == [None, None]
    assert [s.note["on_topic"] for s in steps(document)] == [None, None]
    assert len(helpers["scorer"].calls) == 2 * 2 + 2 * 2


def test_a_failed_call_is_no_leaf() -> None:
    broken = Reply("", finish_reason="error", error="provider_error")
    document, _, helpers = run(target=in_turn(broken))
    assert [s.note["status"] for s in steps(document)] == ["transport_error"] * 2
    assert document.status == "ended: nothing_left"
    assert all(s.note["score"] is None for s in steps(document))
