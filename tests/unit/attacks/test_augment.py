from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adversariallm.attacks._kit.augment import (
    augment,
    augment_as_published,
    flip_case,
    move_characters,
    scramble_words,
)
from adversariallm.core.rng import Rng

ON = {"scramble": True, "capitalize": True, "noise": True}


@given(st.text(max_size=60), st.integers(0, 10**6))
def test_scrambling_keeps_spaces_ends_and_letters(text: str, seed: int) -> None:
    changed, _ = scramble_words(text, 1.0, random.Random(seed))
    assert len(changed) == len(text)
    assert Counter(changed) == Counter(text)
    assert [c.isspace() for c in changed] == [c.isspace() for c in text]
    for before, after in zip(text.split(), changed.split(), strict=True):
        assert (before[0], before[-1]) == (after[0], after[-1])
        if len(before) <= 3:
            assert before == after


@given(st.text(max_size=60), st.integers(0, 10**6))
def test_flipping_case_loses_no_letter_of_any_script(text: str, seed: int) -> None:
    changed, count = flip_case(text, 1.0, random.Random(seed))
    assert len(changed) == len(text)
    assert count == sum(a != b for a, b in zip(text, changed, strict=True))
    for before, after in zip(text, changed, strict=True):
        assert after in (before, before.swapcase())


@given(st.text(max_size=60), st.integers(0, 10**6))
def test_noise_moves_printable_ascii_by_one_and_nothing_else(text: str, seed: int) -> None:
    changed, count = move_characters(text, 1.0, random.Random(seed))
    assert count == sum(a != b for a, b in zip(text, changed, strict=True))
    for before, after in zip(text, changed, strict=True):
        if 32 <= ord(before) <= 126:
            assert abs(ord(before) - ord(after)) <= 1 and 32 <= ord(after) <= 126
        else:
            assert before == after


def test_switching_one_change_off_leaves_the_others_as_they_are() -> None:
    text = "Grüße an alle Freunde\nund вторая строка éclair"
    rng = Rng.root(1).child("a")
    full = augment(text, 0.4, rng, **ON)
    without = augment(text, 0.4, rng, **{**ON, "noise": False})
    assert (full.words, full.case) == (without.words, without.case)
    assert without.chars == 0
    assert "\n" in full.text and len(full.text) == len(text)


def test_sigma_zero_changes_nothing_and_probabilities_are_those_of_the_paper() -> None:
    text = "abcdefgh " * 4000
    assert augment(text, 0.0, Rng.root(0), **ON).text == text
    found = augment(text, 0.4, Rng.root(0), **ON)
    assert found.words / 4000 == pytest.approx(0.4**0.5, abs=0.03)
    assert found.case / 32000 == pytest.approx(0.4**0.5, abs=0.01)
    assert found.chars / 36000 == pytest.approx(0.4**3, abs=0.01)


def test_the_published_function_keeps_its_faults() -> None:
    # non-ASCII letters chosen for a flip vanish, line breaks become blanks
    changed = augment_as_published("Grüße дом\néclair", 1.0, 3).text
    assert "\n" not in changed and len(changed) < len("Grüße дом\néclair")
