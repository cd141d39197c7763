"""Our texts share no sentence patterns, and the training set shares no wording with them."""

from __future__ import annotations

import itertools
import json
import re
from difflib import SequenceMatcher
from pathlib import Path

from adversariallm.datasets import load_dataset

FILE = Path(__file__).resolve().parents[3] / "scripts" / "guarded_train.jsonl"
ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
ALL = [
    b
    for name in ("starter_harmful", "starter_benign", "starter_utility")
    for b in load_dataset(name, shuffle=False)
]
STARTER = [b.goal for b in ALL]
FUNCTION_WORDS = frozenset(
    """a about across after all am an and any are as at away back be because been before being
    between but by can could did do does down during each every for from had has have he
    her here him his how i if in into is it its let may me might mine must my never no not
    of off on onto or our out over please shall she should so some than that the their
    them then there these they this those through to under until up us was we were what
    when where which while who whose why will with within without would you your""".split()
)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?|\d+", text.lower())


def content_words(text: str) -> list[str]:
    return [w for w in words(text) if w not in FUNCTION_WORDS]


def ngrams(items: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(items[i : i + n]) for i in range(len(items) - n + 1)}


def pattern(text: str) -> tuple[str, ...]:
    """The sentence with every run of content words replaced by one blank."""
    out: list[str] = []
    for w in words(text):
        sign = w if w in FUNCTION_WORDS else "_"
        if not (sign == "_" and out and out[-1] == "_"):
            out.append(sign)
    return tuple(out)


def similarity(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    """Share of the two patterns that matches in order, between 0 and 1."""
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def test_no_two_items_share_a_sentence_pattern() -> None:
    """A pattern is the sentence with its content words blanked out; near copies count as shared."""
    for a, b in itertools.combinations(ALL, 2):
        assert similarity(pattern(a.goal), pattern(b.goal)) <= 0.8, (a.goal, b.goal)


def test_no_two_items_open_alike_or_share_four_words_in_a_row() -> None:
    for a, b in itertools.combinations(ALL, 2):
        assert words(a.goal)[:2] != words(b.goal)[:2], (a.goal, b.goal)
        assert not ngrams(words(a.goal), 4) & ngrams(words(b.goal), 4), (a.goal, b.goal)


def test_the_pattern_test_would_notice_a_template() -> None:
    one, two = "Write a mean poem about my boss.", "Write a rude letter about my aunt."
    assert similarity(pattern(one), pattern(two)) > 0.8


def test_look_alikes_really_share_topics_with_the_harmful_items() -> None:
    """Per category, most benign items share a content word with some harmful item."""
    harmful = load_dataset("starter_harmful")
    shared = [
        any(
            set(content_words(b.goal)) & set(content_words(h.goal))
            for h in harmful
            if h.category == b.category
        )
        for b in load_dataset("starter_benign")
    ]
    assert sum(shared) >= 32


def test_the_training_set_has_pairs_of_harmful_items_and_look_alikes() -> None:
    harmful = [r["id"] for r in ROWS if r["harmful"]]
    benign = {r["id"] for r in ROWS if not r["harmful"]}
    assert len(harmful) >= 150 and len(benign) >= 150
    assert all(i.replace("-harmful", "-benign") in benign for i in harmful)
    assert len({r["prompt"] for r in ROWS}) == len({r["id"] for r in ROWS}) == len(ROWS)


def test_no_wording_is_shared_with_the_starter_sets() -> None:
    """No 4 words or 3 content words in a row, and at most half of the content words."""

    def views(text: str) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]], set[str]]:
        content = content_words(text)
        return ngrams(words(text), 4), ngrams(content, 3), set(content)

    theirs = [(goal, *views(goal)) for goal in STARTER]
    for row in ROWS:
        four, three, content = views(row["prompt"])
        for goal, their_four, their_three, their_content in theirs:
            pair = (row["prompt"], goal)
            assert not four & their_four, pair
            assert not three & their_three, pair
            common = len(content & their_content)
            assert common <= min(len(content), len(their_content)) / 2, pair


def test_long_sentence_patterns_are_not_shared_with_the_starter_sets_either() -> None:
    theirs = {pattern(g) for g in STARTER if len(pattern(g)) >= 6}
    assert not [r["prompt"] for r in ROWS if pattern(r["prompt"]) in theirs]
