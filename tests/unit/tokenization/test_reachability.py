from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from adversariallm.core.types import Conversation, Message
from adversariallm.tokenization import ChatTokenizer, Codec, ReachabilityStats, Slot
from adversariallm.tokenization.cuts import find_anchors

MARKED = "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.content }}</s>{% endfor %}<|turn|>"
GLUED = "{{ bos_token }}{% for m in messages %}a b{{ m.content }}ab a{% endfor %}"
TRIMMED = "{{ bos_token }}{% for m in messages %}a {{ m.content | trim }} b{% endfor %}"
AB = ["ab ba aab bab abba", "aa bb abab baba a b", "b a ab aab aba bba", "ba ba ab ab aaa bbb"]
LONGEST = 3


@pytest.mark.parametrize("kind", ["byte", "metaspace", "unigram"])
@pytest.mark.parametrize("template", [MARKED, GLUED, TRIMMED])
@pytest.mark.parametrize("slot", [Slot(text="a"), Slot("prefix", "a b"), Slot("turn", "ab a")])
def test_reachable_means_that_some_text_gives_these_ids(
    train: Callable[..., Any], kind: str, template: str, slot: Slot
) -> None:
    """All strings over a three-letter alphabet against all slot ids of up to two tokens."""
    tokenizer = train(kind, 300 if kind == "byte" else 40, AB, LONGEST)
    chat = ChatTokenizer(tokenizer, template)
    segments = chat.segments(Conversation.user("ba"), slot)
    (span,) = segments.named("slot")
    head, tail = segments.ids[: span.start], segments.ids[span.end :]
    (place,) = segments.note["slots"]["chars"]
    content = segments.conversation[0].content
    rows = []
    for n in range(2 * LONGEST + 2):
        for letters in itertools.product("ab ", repeat=n):
            text = content[: place["start"]] + "".join(letters) + content[place["end"] :]
            rows.append(chat.template.text([Message("user", text)], True))
    produced = set()
    for ids in chat.codec.encode_batch(rows):
        ids = [*chat.missing_bos(ids), *ids]
        middle = ids[len(head) : len(ids) - len(tail)]
        if tuple(ids) == (*head, *middle, *tail):
            produced.add(tuple(middle))
    pieces = chat.codec.pieces
    known = [
        i for i, p in enumerate(pieces) if p and set(p) <= set("ab ") and i not in chat.codec.added
    ]
    candidates = [c for n in (1, 2) for c in itertools.product(known, repeat=n)]
    verdict = chat.reachable(segments, candidates)
    filtered = chat.reachability(segments)
    assert [filtered.by_definition(c) for c in candidates] == list(verdict.kept)
    unproduced = [
        c for c, k in zip(candidates, verdict.kept, strict=True) if k and c not in produced
    ]
    assert unproduced == []
    missed = [c for c, k in zip(candidates, verdict.kept, strict=True) if not k and c in produced]
    assert missed == []
    assert 0 < sum(verdict.kept) < len(candidates)


def test_statistics_tell_the_isolated_check_from_the_conversations(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama3_1"))
    segments = chat.segments(Conversation.user("Look at the"), Slot(text=" x x"))
    one, two = chat.codec.encode("se"), chat.codec.encode(" people")
    split = [chat.codec.encode(" th")[0], chat.codec.encode("e")[0]]
    result = chat.reachable(segments, [[*two, *two], [*one, *two], split])
    assert result.kept == (True, False, False)
    assert result.indices == (0,)
    assert result.mask().tolist() == [True, False, False]
    assert result.texts[1] == ("se people",)
    stats = result.stats
    assert (stats.sampled, stats.kept) == (3, 1)
    assert (stats.rejected_isolated, stats.rejected_conversation) == (1, 1)
    assert stats.merged == {"prompt|slot": 1}
    assert (stats.examples[0].left_text, stats.examples[0].right_text) == (" the", "se")
    total = stats + ReachabilityStats(sampled=2, kept=2)
    assert (total.sampled, total.kept, total.merged) == (5, 3, {"prompt|slot": 1})


def test_a_merge_with_what_follows_is_told_apart(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("gpt2"), "alpaca")
    segments = chat.segments(Conversation.user("Hi"), Slot(text=" x x"))
    end = chat.codec.encode("\n")
    x = chat.codec.encode(" x")
    result = chat.reachable(segments, [[*x, *x], [*x, *end]])
    assert result.kept == (True, False)
    assert result.stats.merged == {"slot|post": 1}


def test_a_leading_blank_is_reachable_where_the_isolated_check_fails(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama2"), "llama-2")
    segments = chat.segments(Conversation.user("Hello."), Slot(text=" x x"))
    result = chat.reachable(segments, [segments.slot_ids])
    assert result.kept == (True,)
    assert result.texts == ((" x x",),)


def test_no_reachable_candidate_is_an_answer_not_an_error(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("smollm2"))
    segments = chat.segments(Conversation.user("Hi"), Slot(text=" x"))
    broken = [chat.codec.encode(" th")[0], chat.codec.encode("e")[0]]
    result = chat.reachable(segments, [broken])
    assert result.kept == (False,)
    assert result.stats.kept == 0
    assert chat.reachable(segments, []).stats.sampled == 0


def test_candidates_may_be_a_tensor_of_any_width(tokenizer_of: Any) -> None:
    import torch

    chat = ChatTokenizer(tokenizer_of.codec("smollm2"))
    segments = chat.segments(Conversation.user("Hi"), Slot())
    rows = torch.tensor([chat.codec.encode(" a big dog"), chat.codec.encode(" the small sun")[:3]])
    assert chat.reachable(segments, rows).kept == (True, True)
    assert chat.reachable(segments, [[], rows[0].tolist()[:1]]).kept == (True, True)


@pytest.mark.parametrize(
    "text", ["</think>", " a\n</think>b", "<tool_response>", "\nuser", " assistant x", "\n\n"]
)
def test_text_that_a_template_looks_for_is_rendered_not_spliced(
    tokenizer_of: Any, text: str
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"))
    segments = chat.segments(Conversation.user("Hi"), Slot("turn", " x x x"))
    ids = chat.codec.encode(text)
    keep = chat.reachability(segments)
    assert keep([ids]).kept == (keep.by_definition(ids),)


def test_a_template_that_tests_the_content_is_not_guessed(trained: Any) -> None:
    source = "{% for m in messages %}{{ 'cat' in m.content }}{{ m.content }}{% endfor %}"
    chat = ChatTokenizer(trained, source)
    segments = chat.segments(Conversation.user("the dog"), Slot(text=" sat on"))
    for text in (" ran to the cat", " cat", " sat on the mat"):
        ids = chat.codec.encode("dog" + text)[len(chat.codec.encode("dog")) :]
        keep = chat.reachability(segments)
        assert keep([ids]).kept == (keep.by_definition(ids),)


def test_special_tokens_typed_by_a_candidate_are_judged_by_their_ids(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("smollm2"))
    segments = chat.segments(Conversation.user("Hi"), Slot(text=" x"))
    marker = chat.codec.encode("<|im_end|>")
    spelled = [chat.codec.encode(c)[0] for c in "<|im_end|>"]
    assert chat.codec.decode(spelled) == "<|im_end|>"
    assert chat.reachable(segments, [marker, spelled]).kept == (True, False)


def test_anchors_exclude_tokens_that_others_can_swallow(train: Callable[..., Any]) -> None:
    from tokenizers import AddedToken

    tokenizer = train("byte", 320)
    tokenizer.add_tokens(
        [
            AddedToken("<ab>", normalized=False),
            AddedToken("<ab><cd>", normalized=False),
            AddedToken("xy", normalized=False),
            AddedToken("yz", normalized=False),
            AddedToken("<ok>", normalized=False),
            AddedToken("<norm>", normalized=True),
        ]
    )
    codec = Codec(tokenizer)
    names = {codec.added[i].content for i in find_anchors(codec)}
    assert "<ok>" in names and "<|turn|>" in names and "xy" in names
    assert names.isdisjoint({"<ab>", "<cd>", "yz", "<norm>"})
    assert "<ab><cd>" in names


def test_words_are_no_edges_where_tokens_span_them(train: Callable[..., Any]) -> None:
    from tokenizers import AddedToken

    tokenizer = train("byte", 320)
    edge = Codec(tokenizer).edge
    assert edge is not None and edge.split("ab cd 1 e. f") == ["ab", "cd 1", "e.", "f"]
    tokenizer.add_tokens([AddedToken("b c", normalized=False)])
    edge = Codec(tokenizer).edge
    assert edge is not None and edge.split("ab cd a b") == ["ab cd", "a", "b"]
    tokenizer.add_tokens([AddedToken("left", normalized=False, lstrip=True)])
    assert Codec(tokenizer).edge is None


def test_trained_tokenizers_agree_with_the_definition(trained: Any) -> None:
    import random

    draw = random.Random(0)
    chat = ChatTokenizer(trained, MARKED)
    usable = [i for i in range(len(chat.codec)) if i not in chat.codec.added]
    for prompt in ("the cat", "a dog ", "", "12:45 and", "don't wait.\n"):
        for slot in (Slot(text=" sat on"), Slot("prefix", "x"), Slot("both", " a", "space")):
            segments = chat.segments(Conversation.user(prompt), slot)
            assert segments.input_ids == chat.encode(segments.conversation)
            n = len(segments.slot_ids)
            rows = [draw.choices(usable, k=n) for _ in range(100)]
            keep = chat.reachability(segments)
            assert list(keep(rows).kept) == [keep.by_definition(r) for r in rows]


def test_an_empty_slot_is_filtered_in_batches_too(
    tokenizer_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("smollm2"))
    keep = chat.reachability(chat.segments(Conversation.user("Hi there."), Slot()))
    rows = [chat.codec.encode(t) for t in (" a", " a big", "", " sun dog", "the")]
    truth = [keep.by_definition(r) for r in rows]
    monkeypatch.setattr(keep, "by_definition", None)
    assert list(keep(rows).kept) == truth


def test_only_a_short_stretch_is_encoded(tokenizer_of: Any) -> None:
    """Special tokens and word edges bound what a candidate of a long conversation costs."""
    for name, template in (
        ("smollm2", None),
        ("llama2", "llama-2"),
        ("mistral_v3_spm", "mistral-v3"),
    ):
        chat = ChatTokenizer(tokenizer_of.codec(name), template)
        prompt = "Tell me a very long story about the sea and the sun. " * 20
        keep = chat.reachability(chat.segments(Conversation.user(prompt), Slot(text="x x")))
        window = keep._window
        assert len(window.before) > 900
        assert len(window.head) < 10 and len(window.tail) < 10
