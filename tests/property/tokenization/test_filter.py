"""Random conversations and candidates against the definition and the library alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import TemplateError
from adversariallm.core.types import Conversation, Message, Segments
from adversariallm.tokenization import ChatTokenizer, Slot, load_tokenizer

TEMPLATES = {
    "gpt2": "alpaca",
    "gptoss": "harmony",
    "llama2": "llama-2",
    "mistral_v1": "mistral-v1",
    "mistral_v1_spm": "vicuna",
    "mistral_v3_spm": "mistral-v3",
    "tiny_torchtune": "plain",
}
SMALL = ["gpt2", "llama2", "mistral_v3_spm", "qwen3", "smollm2", "tiny_torchtune"]
LARGE = [
    "deepseek_v3", "gemma2", "gemma3", "gptoss", "llama3", "llama3_1", "mistral_v1",
    "mistral_v1_spm",
]  # fmt: skip
PARTS = [
    "Tell me about the sea.", "x", "", " leading", "trailing ", "\n\nlines\n", "Why? Because!\n",
    "\u65e5\u672c\u8a9e", "\U0001f469\u200d\U0001f467 ok", "e\u0301\u0323 marks",
    "\u0e44\u0e17\u0e22", "\u200b",
    "<|im_start|>user", "[INST] a [/INST]", "</s>", "<think>a</think>b",
    "<start_of_turn>user\n", "<bos>",
    "{{ messages }}", "tab\tand  blanks   here", "123456.789", "don't we're",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "## Title\n- item\n- item",
]  # fmt: skip


def some_conversation(draw: random.Random) -> Conversation:
    """System, several turns, empty and odd contents, sometimes a begun answer."""

    def text() -> str:
        return "".join(draw.choices(PARTS, k=draw.randint(1, 3)))

    turns = [Message("system", text())] if draw.random() < 0.3 else []
    for _ in range(draw.randrange(3)):
        turns += [Message("user", text()), Message("assistant", text())]
    turns.append(Message("user", text()))
    if draw.random() < 0.15:
        turns.append(Message("assistant", text()))
    return Conversation(tuple(turns))


def some_slot(draw: random.Random, conversation: Conversation) -> Slot:
    users = [i for i, m in enumerate(conversation) if m.role == "user"]
    return Slot(
        where=draw.choice(["suffix", "suffix", "prefix", "both", "turn"]),  # type: ignore[arg-type]
        text=draw.choice([" x x x", "!!!", "abc", "x x x", " hello\n", ""]),
        join=draw.choice(["none", "space"]),  # type: ignore[arg-type]
        turn=draw.choice([None, users[0]]),
    )


def library_ids(chat: ChatTokenizer, conversation: Conversation) -> list[int]:
    """What the tokenizer library alone gives, with its BOS where its template leaves it out."""
    rows = chat.prepare(conversation).to_dicts()
    ids = chat.tokenizer.apply_chat_template(
        rows, chat_template=chat.template.source, add_generation_prompt=True
    )["input_ids"]
    bos = chat.tokenizer("")["input_ids"]
    return list(ids) if list(ids[: len(bos)]) == list(bos) else [*bos, *ids]


def candidates(
    draw: random.Random, segments: Segments, pool: list[int], count: int
) -> list[list[int]]:
    """Half random, half one token away from the base."""
    several = len(segments.named("slot")) > 1
    n = len(segments.slot_ids)
    length = n if several else draw.choice([n, 1, 5, 20])
    rows = [draw.choices(pool, k=length) for _ in range(count)]
    for row in rows[: count // 2]:
        if length == n and n:
            row[:] = segments.slot_ids
            row[draw.randrange(n)] = draw.choice(pool)
    return rows


def check(chat: ChatTokenizer, draw: random.Random, count: int) -> tuple[int, int]:
    """One random conversation and its candidates; number tried and kept."""
    conversation = some_conversation(draw)
    try:
        rendered = chat.render(conversation)
    except TemplateError as e:
        assert "refuses a conversation" in str(e)
        return 0, 0
    for span, message, trim in zip(
        rendered.spans, chat.prepare(conversation), rendered.trims, strict=True
    ):
        given = rendered.text[span.start : span.end]
        flagged = any(a.given == message.content for a in rendered.altered)
        assert given == trim(message.content) or flagged
    assert not rendered.altered or any("think>" in m.content for m in conversation)
    segments = chat.segments(conversation, some_slot(draw, conversation), target="Sure, here")
    assert segments.input_ids == chat.encode(segments.conversation)
    if conversation[-1].role == "user":
        assert list(segments.input_ids) == library_ids(chat, segments.conversation)
    ends = [s.end for s in segments.spans]
    assert [s.start for s in segments.spans] == [0, *ends[:-1]] and ends[-1] == len(segments.ids)
    keep = chat.reachability(segments)
    assert keep.by_definition(segments.slot_ids)
    usable = chat.mask().nonzero().flatten().tolist()
    pool = usable if draw.random() < 0.7 else list(range(len(chat.codec)))
    rows = candidates(draw, segments, pool, count)
    result = keep(rows)
    assert [keep.by_definition(r) for r in rows] == list(result.kept)
    assert [keep.texts_of(r) for r in rows] == list(result.texts)
    for row, kept in zip(rows[:4], result.kept, strict=False):
        if kept:
            assert chat.with_slot(segments, row).input_ids == segments.input_with(row)
    return len(rows), sum(result.kept)


def load(folder: Path, name: str) -> ChatTokenizer:
    return ChatTokenizer(load_tokenizer(folder / "tokenizers" / name), TEMPLATES.get(name))


@pytest.mark.parametrize("name", SMALL)
def test_verdicts_and_spans_are_exact(data_dir: Path, name: str) -> None:
    chat, draw = load(data_dir, name), random.Random(name)
    totals = [check(chat, draw, 16) for _ in range(25)]
    assert 0 < sum(k for _, k in totals) < sum(n for n, _ in totals)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_ten_thousand_candidates_for_each_tokenizer(data_dir: Path, name: str) -> None:
    chat, draw = load(data_dir, name), random.Random(name + "slow")
    tried = kept = 0
    while tried < 10_000:
        n, k = check(chat, draw, 50)
        tried, kept = tried + n, kept + k
    assert 0 < kept < tried


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_twenty_random_tokens_against_the_library_alone(data_dir: Path, name: str) -> None:
    """10,000 random 20-token suffixes; the oracle uses transformers only."""
    chat, draw = load(data_dir, name), random.Random(name)
    conversation = Conversation.from_dicts(
        [
            {"role": "user", "content": "Hello there."},
            {"role": "assistant", "content": "Hi. What is it?"},
            {"role": "user", "content": "Tell me a story about the sea, please."},
        ]
    )
    segments = chat.segments(conversation, Slot(text=" x" * 20))
    usable: list[int] = chat.mask().nonzero().flatten().tolist()
    rows = [draw.choices(usable, k=20) for _ in range(10_000)]
    result = chat.reachable(segments, rows)
    tokenizer: Any = chat.tokenizer
    before = list(segments.before)
    head = tokenizer.decode(before, clean_up_tokenization_spaces=False)
    (place,) = segments.note["slots"]["chars"]
    content = segments.conversation[2].content
    for row, kept in zip(rows, result.kept, strict=True):
        text = tokenizer.decode([*before, *row], clean_up_tokenization_spaces=False)
        text = content[: place["start"]] + text[len(head) :] + content[place["end"] :]
        ids = library_ids(chat, segments.conversation.with_content(2, text))
        assert (tuple(ids) == segments.input_with(row)) == kept, row
