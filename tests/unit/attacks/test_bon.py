"""Best-of-N as an attack: its streams, its modes, and what it books."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from adversariallm.attacks._kit.augment import augment_as_published

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, behavior, play, steps  # noqa: E402  -- beside this file

TEXT = "Please describe three different water birds and where they live."


def run(goal: str = TEXT, **options: Any) -> list[Any]:
    document = play(
        "bon", Paid(lambda talk, rng: "a"), {}, asked=behavior(goal), **{"num_steps": 6, **options}
    )
    return steps(document)


def sent(found: list[Any]) -> list[str]:
    return [s.model_input[-1]["content"] for s in found]


def transcribed(text: str, sigma: float, seed: int) -> str:
    """The published description once more, written apart from the package's code."""
    rnd = random.Random(seed)
    words = text.split()
    for k, word in enumerate(words):
        if len(word) > 3 and rnd.random() < sigma ** (1 / 2):
            middle = list(word[1:-1])
            rnd.shuffle(middle)
            words[k] = word[0] + "".join(middle) + word[-1]
    out = ""
    for char in " ".join(words):
        out += char.swapcase() if char.isalpha() and rnd.random() < sigma ** (1 / 2) else char
    noised = ""
    for char in out:
        moved = char
        if char.isprintable() and rnd.random() < sigma**3:
            moved = chr(ord(char) + rnd.choice([-1, 1]))
        noised += moved if 32 <= ord(moved) <= 126 else char
    return noised


@pytest.mark.parametrize("seed", range(20))
def test_the_published_function_on_ascii_equals_its_description(seed: int) -> None:
    assert augment_as_published(TEXT, 0.4, seed).text == transcribed(TEXT, 0.4, seed)


def test_the_published_mode_never_changes() -> None:
    texts = "\n".join(augment_as_published(TEXT, 0.4, seed).text for seed in range(50))
    digest = hashlib.sha256(texts.encode()).hexdigest()
    assert digest == "999b631712c1e6051a631d6963639f475520bf3b9bbfe7dd947e19d313a52efe"


def test_the_published_mode_counts_from_its_seed_for_every_behavior() -> None:
    found = run(augmentation="reference", reference_seed=7)
    assert sent(found)[1:] == [augment_as_published(TEXT, 0.4, 7 + k).text for k in range(6)]
    assert all("changed" not in s.note for s in found)


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    assert sent(run(num_steps=9))[:7] == sent(run(num_steps=6))


def test_switching_one_change_off_leaves_the_others_alone() -> None:
    full = [s.note["changed"] for s in run()[1:]]
    without = [s.note["changed"] for s in run(ascii_perturbation=False)[1:]]
    assert [(c["words"], c["case"]) for c in full] == [(c["words"], c["case"]) for c in without]
    assert all(c["chars"] == 0 for c in without)


def test_optimization_costs_nothing_and_every_step_is_sampled() -> None:
    found = run()
    assert len(found) == 7 and all(s.flops == 0 for s in found)
    assert all(list(s.ledgers) == ["sampling"] for s in found)
