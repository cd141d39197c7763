"""Erased versions against brute force, the certificate, the filter's two ways of reading."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import binom

from adversariallm.core.protocols import Supplies
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses._kit.erase import Mode, certified_detection, erased, most_versions
from adversariallm.defenses.erase_and_check import Config, wrap
from adversariallm.models.tiny import tiny_model

from .doubles import WordJudge, ask, costing, prompt_of

MODES: tuple[tuple[Mode, int], ...] = (
    ("suffix", 1), ("insertion", 1), ("insertion", 2), ("infusion", 1),
)  # fmt: skip


def attacked(clean: tuple[str, ...], mode: Mode, depth: int, insertions: int) -> set[Any]:
    """All that an attacker of this mode can make of a prompt, by definition."""
    alphabet = ("x", "y")
    pieces = [p for k in range(depth + 1) for p in itertools.product(alphabet, repeat=k)]
    if mode == "suffix":
        return {clean + p for p in pieces}
    if mode == "insertion":
        return {
            tuple(itertools.chain.from_iterable(_woven(clean, places, added)))
            for places in itertools.combinations_with_replacement(range(len(clean) + 1), insertions)
            for added in itertools.product(pieces, repeat=insertions)
        }
    out = set()
    total = len(clean)
    for count in range(depth + 1):
        for places in itertools.combinations(range(total + count), count):
            for letters in itertools.product(alphabet, repeat=count):
                rest = iter(clean)
                added = iter(letters)
                out.add(
                    tuple(next(added) if k in places else next(rest) for k in range(total + count))
                )
    return out


def _woven(clean: Any, places: Any, added: Any) -> Any:
    """The prompt's stretches with what is inserted between them."""
    for start, end, piece in zip((0, *places), places, added, strict=False):
        yield clean[start:end]
        yield piece
    yield clean[places[-1] :]


@pytest.mark.parametrize(("mode", "insertions"), MODES)
@pytest.mark.parametrize("depth", [1, 2])
def test_the_clean_prompt_is_among_the_versions_of_every_attack(
    mode: Mode, insertions: int, depth: int
) -> None:
    clean = ("a", "b", "c")
    for prompt in attacked(clean, mode, depth, insertions):
        versions = list(erased(prompt, mode, depth, insertions))
        assert versions[0] == prompt
        assert clean in versions
        assert len(versions) == len(set(versions))
        assert () not in versions
        assert len(versions) <= most_versions(len(prompt), mode, depth, insertions)


@pytest.mark.parametrize(("mode", "insertions"), MODES)
def test_versions_are_all_erasures_and_nothing_else(mode: Mode, insertions: int) -> None:
    units, depth = tuple(range(5)), 2
    wanted = set()
    for gone in itertools.chain.from_iterable(
        itertools.combinations(range(5), k) for k in range(6)
    ):
        fits = {
            "suffix": len(gone) <= depth and gone == tuple(range(5 - len(gone), 5)),
            "insertion": _stretches_needed(gone, depth) <= insertions,
            "infusion": len(gone) <= depth,
        }[mode]
        if fits:
            wanted.add(tuple(u for u in units if u not in gone))
    assert set(erased(units, mode, depth, insertions)) == wanted - {()}


def _runs(gone: tuple[int, ...]) -> list[list[int]]:
    out: list[list[int]] = []
    for g in gone:
        if out and out[-1][-1] == g - 1:
            out[-1].append(g)
        else:
            out.append([g])
    return out


def _stretches_needed(gone: tuple[int, ...], depth: int) -> int:
    return sum(-(-len(run) // depth) for run in _runs(gone))


@pytest.mark.parametrize(("mode", "insertions"), MODES)
def test_the_bound_on_versions_counts_them_before_equal_ones_are_merged(
    mode: Mode, insertions: int
) -> None:
    for count in range(6):
        found = list(erased(tuple(range(count)), mode, 2, insertions))
        assert len(found) <= most_versions(count, mode, 2, insertions)
    assert most_versions(5, "suffix", 2) == 3
    assert most_versions(5, "infusion", 2) == 1 + 5 + 10
    assert most_versions(5, "insertion", 2) == 1 + 5 + 4


def test_the_certificate_is_an_exact_binomial_bound() -> None:
    rate, lower = certified_detection(18, 20)
    assert rate == 0.9
    assert binom.sf(17, 20, lower) == pytest.approx(0.05)
    assert certified_detection(0, 20)[1] == 0
    with pytest.raises(ValueError, match="expected 0 <= found <= of"):
        certified_detection(3, 2)


def behind(answer: Any, judge: WordJudge, **options: Any) -> Any:
    options = {"unit": "word", "depth": 2, **options}
    config = Config(judge="word", **options)
    return wrap(costing(answer), config, Supplies(judges={"word": judge}))


def test_an_appended_suffix_cannot_hide_what_the_filter_finds_in_the_clean_prompt() -> None:
    def answers(conversation: Conversation, rng: Rng) -> str:
        # refuses the plain request only: two words of suffix get through
        return "no" if prompt_of(conversation) == "bad plan" else "yes"

    [plain] = ask(behind(answers, WordJudge("yes"), depth=1), "bad plan zz yy")
    assert plain.text == "yes"  # one word erased is not enough
    [reply] = ask(behind(answers, WordJudge("yes"), depth=2), "bad plan zz yy")
    assert reply.finish_reason == "content_filter" and reply.error is None
    [facts] = reply.raw["defense"]
    assert (facts["version"], facts["checks"]) == ("bad plan", 3)
    assert reply.usage.queries == 1
    assert (reply.defense_usage.queries, reply.defense_usage.flops) == (3, 3 * 17)


def test_a_request_that_is_refused_itself_needs_one_check() -> None:
    [reply] = ask(behind("no", WordJudge("yes")), "a b c d")
    assert reply.raw["defense"][0]["checks"] == 1
    [reply] = ask(behind("yes", WordJudge("yes")), "a b c d")
    assert (reply.text, reply.raw["defense"][0]["checks"]) == ("yes", 3)
    assert (reply.usage.queries, reply.defense_usage.queries) == (1, 3)


def test_a_judge_of_requests_reads_every_version_and_the_model_is_asked_once() -> None:
    judge = WordJudge("bad")
    model = behind("yes", judge, reads="request")
    [reply] = ask(model, "a bad b c")
    assert [prompt_of(c) for c in judge.read] == ["a bad b c"]
    assert reply.finish_reason == "content_filter" and model.model.calls == []
    judge.read.clear()
    [reply] = ask(model, "a  b c")
    assert [prompt_of(c) for c in judge.read] == ["a  b c", "a b", "a"]
    assert (reply.text, reply.defense_usage.flops) == ("yes", 21)


def test_a_filter_that_cannot_decide_withholds_and_marks() -> None:
    [reply] = ask(behind("what?", WordJudge("yes")), "a b")
    assert reply.error == "defense:erase_and_check:parse" and "what" not in reply.text
    [reply] = ask(behind(Reply("yes", error="timeout"), WordJudge("yes")), "a b")
    assert reply.error == "defense:erase_and_check:timeout"


def test_a_prompt_with_too_many_versions_is_neither_answered_nor_scored() -> None:
    model = behind("yes", WordJudge("yes"), mode="infusion", max_checks=20)
    good, bad = ask(model, "a b", "a b c d e f g h")
    assert good.text == "yes"
    assert bad.error == "defense:erase_and_check:too_many_checks"


def test_tokens_of_the_model_are_erased_and_batches_change_nothing() -> None:
    inner = tiny_model("llama")
    supplies = Supplies(judges={"word": WordJudge("never")})
    # every answer lacks the word, so each prompt is declined at its first check
    model = wrap(inner, Config(judge="word", filter_tokens=2, depth=3), supplies)
    prompts = ("write a short story", "good music")
    together = ask(model, *prompts)
    alone = [ask(model, p)[0] for p in prompts]
    assert [replace(r, executed=0) for r in alone] == [replace(r, executed=0) for r in together]
    assert all(r.finish_reason == "content_filter" for r in together)
    judge = WordJudge("")
    model = wrap(
        inner, Config(judge="word", filter_tokens=2, depth=3), Supplies(judges={"word": judge})
    )
    [reply] = ask(model, "write a short story")
    ids = inner.chat.codec.encode("write a short story")
    assert [prompt_of(c) for c in judge.read[1:]] == [
        inner.chat.codec.decode(ids[: len(ids) - k]) for k in (1, 2, 3)
    ]
    assert reply.raw["defense"][0]["checks"] == 4


def test_a_judge_of_answers_cannot_read_requests() -> None:
    with pytest.raises(ValueError, match="which reads answers"):
        Config(reads="request")
