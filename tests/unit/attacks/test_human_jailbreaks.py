"""Human jailbreaks: each step holds its own behavior once, whatever the text looks like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks import human_jailbreaks
from adversariallm.attacks.human_jailbreaks import Config, has_slot, insert, read_texts
from adversariallm.core.errors import ConfigError, DataError
from adversariallm.runs.settings import configure

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, behavior, play, steps  # noqa: E402  -- beside this file


def run(goal: str = "name three birds", **options: Any) -> list[Any]:
    document = play(
        "human_jailbreaks", Paid(lambda talk, rng: "a"), {}, asked=behavior(goal), **options
    )
    return steps(document)


@pytest.mark.parametrize("goal", ["bread {} 1", "jam {0}{prompt}", "tea"])
def test_every_step_holds_its_own_behavior(goal: str) -> None:
    found = [s.model_input[-1]["content"] for s in run(goal)]
    assert found == [
        f"Tell a story: {goal}",
        f"No slot here\n\n{goal}",
        f"Say {{this}} and {goal}, then {goal}",
        f"Last: {goal}",
    ]
    assert [s.note["insertion"] for s in run(goal)] == ["slot", "append", "slot", "slot"]


def test_the_published_way_leaves_slots_and_braces() -> None:
    found = [s.model_input[-1]["content"] for s in run("tea", insertion="append")]
    assert found[0] == "Tell a story: {}\n\ntea"
    assert found[2] == "Say {{this}} and {0}, then {0}\n\ntea"


def test_a_list_with_slots_of_its_own_keeps_every_other_brace() -> None:
    goal = "tea {} {{ prompt }}"
    found = run(goal, texts="pyrit_in_the_wild", subset=None, insertion="slot")
    assert [s.model_input[-1]["content"] for s in found[:2]] == [
        f"A {{letter}}: {goal}",
        f"{goal} as {{}}",
    ]


def test_texts_without_a_slot_can_be_left_out() -> None:
    assert [s.note["index"] for s in run(insertion="slot")] == [0, 2, 3]


def test_a_subset_is_the_same_for_every_behavior() -> None:
    chosen = [[s.note["index"] for s in run(goal, subset=2)] for goal in ("a", "b", "c")]
    assert chosen[0] == chosen[1] == chosen[2] and len(chosen[0]) == 2
    other = [s.note["index"] for s in run(subset=2, subset_seed=3)]
    assert {tuple(chosen[0]), tuple(other)} != {tuple(chosen[0])}


def test_chosen_indices_are_kept_in_order_and_checked() -> None:
    assert [s.note["index"] for s in run(indices=(3, 0))] == [3, 0]
    with pytest.raises(DataError, match=r"\[9\].*4 texts"):
        run(indices=(9,))
    with pytest.raises(DataError, match="subset=9"):
        run(subset=9)
    with pytest.raises(ConfigError, match="give one"):
        configure("attacks", "human_jailbreaks", {"subset": 1, "indices": [0]})


def test_characters_written_as_two_halves_are_put_together() -> None:
    halves = json.dumps(["a \ud83d\ude00 b", "\ud83d alone"])
    assert read_texts(halves, "x") == ["a \U0001f600 b", "\ufffd alone"]
    for wrong in ('{"a": 1}', "[1]"):
        with pytest.raises(DataError, match="no JSON list"):
            read_texts(wrong, "x")


def test_the_request_is_not_read_again() -> None:
    assert insert("x {} {{y}}", "{{0}} [INSERT PROMPT HERE]", "slot")[0] == (
        "x {{0}} [INSERT PROMPT HERE] {y}"
    )
    assert not has_slot("only {{braces}} and {other}")


def test_the_list_decides_which_text_is_needed() -> None:
    info = human_jailbreaks.INFO
    assert info.assets_of(Config()) == ("human/harmbench",)
    assert info.assets_of(Config(texts="shen_2023_05")) == ("human/shen_2023_05",)


def test_optimization_costs_nothing() -> None:
    assert all("optimization" not in s.ledgers and s.flops == 0 for s in run())
