"""AutoDAN's word level by hand: WordNet's format, momentum scores, replacement by what did well."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adversariallm.attacks._kit.thesaurus import PARTS, Thesaurus, base_forms
from adversariallm.attacks._kit.words import (
    FUNCTION_WORDS,
    replace_words,
    update_momentum,
    words,
)
from adversariallm.core.errors import DataError

NOUNS = """\
  1 a preface is indented and no meaning
00000001 03 n 03 tale 0 story 1 short_story 0 001 @ 00000002 n 0000 | "a | b" is no field
00000002 03 n 02 story 0 floor 0 000 | another meaning
"""
ADJECTIVES = "00000001 00 s 02 Fine(p) 0 nice 0 000 | shown after a verb only\n"


@pytest.fixture
def small() -> Thesaurus:
    return Thesaurus({"noun": NOUNS, "adj": ADJECTIVES})


def test_all_meanings_of_the_word_and_of_its_base_form_count(small: Thesaurus) -> None:
    assert small.synonyms("story") == ("floor", "tale")
    assert small.synonyms("stories") == ("floor", "story", "tale")
    assert small.synonyms("nicer") == ("fine", "nice")
    assert small.synonyms("fine") == ("nice",)
    assert small.synonyms("short_story") == small.synonyms("unknown") == ()


@pytest.mark.parametrize(
    ("word", "part", "expected"),
    [
        ("glasses", "noun", ["glasses", "glasse", "glass"]),
        ("making", "verb", ["making", "make", "mak"]),
        ("tried", "verb", ["tried", "trie", "tri"]),
        ("finest", "adj", ["finest", "fin", "fine"]),
        ("s", "noun", ["s"]),
        ("nicely", "adv", ["nicely"]),
    ],
)
def test_base_forms_follow_the_rules_of_detachment(
    word: str, part: str, expected: list[str]
) -> None:
    assert base_forms(word, part) == expected


@pytest.mark.parametrize(
    "line", ["tale 0 story", "1 03 n 00 000 | none", "1 03 n 05 tale 0 | short"]
)
def test_another_format_is_an_error_that_names_the_line(line: str) -> None:
    with pytest.raises(DataError, match=r"data\.noun, line 4: .*fetch it again"):
        Thesaurus({"noun": NOUNS + line})


def test_scores_are_means_averaged_with_what_was_there() -> None:
    texts = ["The garden is nice.", "A garden, a Tale", "sky"]
    first = update_momentum({}, texts, [1.0, 3.0, 10.0], 0, {"sky"})
    assert first == {"nice": -1.0, "garden": -2.0, "tale": -3.0}
    assert list(first) == ["nice", "garden", "tale"]
    second = update_momentum(first, ["garden", "wind"], [4.0, 2.5], 2, ())
    assert second == {"nice": -1.0, "wind": -2.5}  # garden: (-2 - 4) / 2, tale: -3, beyond two


def test_a_draw_follows_softmax_of_the_scores(small: Thesaurus) -> None:
    momentum = {"tale": -1.0, "floor": -2.0, "story": -3.0}
    drawn = Counter(
        replace_words("story", momentum, small, 1.0, (), random.Random(seed))[0]
        for seed in range(4000)
    )
    total = sum(math.exp(s) for s in momentum.values())
    for word, score in momentum.items():
        assert drawn[word] / 4000 == pytest.approx(math.exp(score) / total, abs=0.03)


def test_only_words_that_did_well_come_in_and_the_rest_of_the_text_stays(small: Thesaurus) -> None:
    text = "Story, STORY\n\n(story)  isn't a nice_story; fine?"
    found, changed = replace_words(text, {"tale": 0.0}, small, 1.0, ("fine",), random.Random(0))
    assert found == "Tale, TALE\n\n(tale)  isn't a nice_tale; fine?"
    assert changed == 4
    assert replace_words(text, {}, small, 1.0, (), random.Random(0)) == (text, 0)
    assert replace_words(text, {"tale": 0.0}, small, 0.0, (), random.Random(0)) == (text, 0)


@given(st.text(max_size=60), st.integers(0, 99))
def test_text_without_known_words_is_never_touched(text: str, seed: int) -> None:
    small = Thesaurus({"noun": NOUNS})
    if not {"story", "stories", "floor", "floors", "tale", "tales"} & set(words(text)):
        again, changed = replace_words(text, {"tale": 0.0}, small, 1.0, (), random.Random(seed))
        assert (again, changed) == (text, 0)


def test_words_without_meaning_never_score() -> None:
    assert {"the", "of", "you", "would"} <= FUNCTION_WORDS
    assert update_momentum({}, ["The of you would"], [1.0], 0, ()) == {}
    assert set(PARTS) == {"noun", "verb", "adj", "adv"}
