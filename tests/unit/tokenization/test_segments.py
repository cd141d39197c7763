from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.errors import ConfigError, TemplateError
from adversariallm.core.types import Conversation, Segments
from adversariallm.tokenization import ChatTokenizer, Slot

STORY = Conversation.user("Tell me a story about a cat.")
CHAT = Conversation.from_dicts(
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "How are you?"},
    ]
)


def texts(chat: ChatTokenizer, segments: Segments) -> list[tuple[str, str]]:
    return [(s.name, chat.decode(segments.ids[s.start : s.end])) for s in segments.spans]


@pytest.fixture(scope="session")
def smollm2_chat(tokenizer_of: Any) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_of.codec("smollm2"), "chatml")


def test_a_suffix_slot_stands_between_prompt_and_template(smollm2_chat: ChatTokenizer) -> None:
    segments = smollm2_chat.segments(STORY, Slot(text="x x x", join="space"), target="Sure, here")
    assert texts(smollm2_chat, segments) == [
        ("template", "<|im_start|>user\n"),
        ("prompt", "Tell me a story about a cat."),
        ("slot", " x x x"),
        ("post", "<|im_end|>\n<|im_start|>assistant\n"),
        ("target", "Sure, here"),
    ]
    assert segments.conversation[0].content == "Tell me a story about a cat. x x x"
    assert segments.input_ids == smollm2_chat.encode(segments.conversation)
    assert segments.merges == ()


def test_slots_before_and_around_the_message(smollm2_chat: ChatTokenizer) -> None:
    both = smollm2_chat.segments(STORY, Slot("both", " y y", "space", prefix="x x"))
    assert [t for n, t in texts(smollm2_chat, both) if n == "slot"] == ["x x", "  y y"]
    assert both.conversation[0].content == "x x Tell me a story about a cat.  y y"
    prefix = smollm2_chat.segments(STORY, Slot("prefix", "x x", "space"))
    assert texts(smollm2_chat, prefix)[1:3] == [
        ("slot", "x x"),
        ("post", " Tell me a story about a cat.<|im_end|>\n<|im_start|>assistant\n"),
    ]


def test_a_slot_in_any_turn(smollm2_chat: ChatTokenizer) -> None:
    first = smollm2_chat.segments(CHAT, Slot(text=" x x", turn=1))
    assert first.conversation[1].content == "Hello there x x"
    assert first.input_ids == smollm2_chat.encode(first.conversation)
    whole = smollm2_chat.segments(CHAT, Slot("turn", "x x", turn=-1))
    assert [m.content for m in whole.conversation][-1] == "x x"
    with pytest.raises(ConfigError, match="message of the assistant: expected a user turn"):
        smollm2_chat.segments(CHAT, Slot(turn=2))
    with pytest.raises(ConfigError, match="has 4 messages"):
        smollm2_chat.segments(CHAT, Slot(turn=7))


def test_prompt_covers_every_message(smollm2_chat: ChatTokenizer) -> None:
    found = texts(smollm2_chat, smollm2_chat.segments(CHAT))
    assert [t for n, t in found if n == "prompt"] == [
        "Be brief.", "Hello there", "Hi.", "How are you?",
    ]  # fmt: skip
    assert found[-1] == ("post", "<|im_end|>\n<|im_start|>assistant\n")


def test_a_blank_of_the_template_that_joins_the_slot_is_kept_by_every_candidate(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("mistral_v3_spm"), "mistral-v3")
    segments = chat.segments(STORY, Slot("turn", "Hello you"))
    assert texts(chat, segments)[1][0] == "slot"
    assert len(segments.slot_ids) == 2
    good, bad = chat.codec.encode("a b"), chat.codec.encode("xa b")[1:]
    assert chat.codec.pieces[bad[0]] == "a"
    kept = chat.reachable(segments, [good, bad])
    assert kept.kept == (True, False)
    assert kept.texts == (("a b",), None)


def test_merges_are_reported_with_the_two_strings(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama3_1"))
    segments = chat.segments(Conversation.user("Look at the"), Slot(text="se people"))
    (merge,) = segments.merges
    assert (merge.left, merge.right) == ("prompt", "slot")
    assert (merge.left_text, merge.right_text) == (" the", "se")
    assert chat.decode(segments.ids[merge.position : merge.position + 1]) == " these"
    assert chat.decode(segments.slot_ids) == " people"
    assert segments.input_ids == chat.encode(segments.conversation)


def test_an_empty_slot_has_a_place(smollm2_chat: ChatTokenizer) -> None:
    segments = smollm2_chat.segments(STORY, Slot())
    assert segments.slot_ids == ()
    assert segments.input_ids == smollm2_chat.encode(STORY)
    ids = smollm2_chat.codec.encode(" more words")
    changed = smollm2_chat.with_slot(segments, ids)
    assert changed.conversation[0].content == "Tell me a story about a cat. more words"
    assert changed.slot_ids == tuple(ids)


def test_with_slot_round_trips_or_says_what_the_ids_read(smollm2_chat: ChatTokenizer) -> None:
    segments = smollm2_chat.segments(STORY, Slot(text=" x x x"), target="Sure")
    ids = smollm2_chat.codec.encode(" one two three four")
    changed = smollm2_chat.with_slot(segments, ids)
    assert (
        changed.input_ids == segments.input_with(ids) == smollm2_chat.encode(changed.conversation)
    )
    assert changed.target_ids == segments.target_ids
    broken = [*smollm2_chat.codec.encode(" th"), *smollm2_chat.codec.encode("e")]
    with pytest.raises(TemplateError, match=r"' the'.*canonicalize"):
        smollm2_chat.with_slot(segments, broken)
    assert smollm2_chat.canonicalize(segments, broken).slot_ids == tuple(
        smollm2_chat.codec.encode(" the")
    )


def test_two_slots_change_together(smollm2_chat: ChatTokenizer) -> None:
    segments = smollm2_chat.segments(STORY, Slot("both", " y y", prefix="x x", join="space"))
    ids = list(segments.slot_ids)
    ids[1], ids[-1] = smollm2_chat.codec.encode(" dog")[0], smollm2_chat.codec.encode(" sun")[0]
    changed = smollm2_chat.with_slot(segments, ids)
    assert changed.conversation[0].content == "x dog Tell me a story about a cat.  y sun"
    assert changed.input_ids == segments.input_with(ids)


@pytest.mark.parametrize(
    ("name", "template", "target"),
    [
        ("smollm2", None, "Sure, here is"),
        ("llama2", "llama-2", "Sure, here is"),
        ("llama3_1", None, "Sure, here is\n"),
        ("mistral_v3_spm", "mistral-v3", "S"),
    ],
)
def test_the_target_is_what_the_template_writes_for_that_answer(
    tokenizer_of: Any, name: str, template: str | None, target: str
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec(name), template)
    segments = chat.segments(STORY, Slot(text=" x x x"), target=target)
    assert segments.input_ids == chat.encode(segments.conversation)
    answered = segments.conversation.append("assistant", target)
    if not target.endswith("\n"):  # the template trims it from a finished answer
        whole = chat.encode(answered, add_generation_prompt=False)
        assert whole[: len(segments.ids)] == segments.ids
    assert chat.decode(segments.ids).endswith(target)


def test_a_target_may_stand_before_or_after_an_empty_trace(
    tokenizer_of: Any,
) -> None:
    answer = ChatTokenizer(tokenizer_of.codec("qwen3"))
    start = ChatTokenizer(tokenizer_of.codec("qwen3"), answer_at="start")
    off = ChatTokenizer(tokenizer_of.codec("qwen3"), thinking="off")
    found = {c: c.decode(c.segments(STORY, target="Sure").target_ids) for c in (answer, start, off)}
    assert list(found.values()) == ["<think>\n\n</think>\n\nSure", "Sure", "Sure"]
    assert off.render(STORY).text.endswith("<think>\n\n</think>\n\n")


def test_a_target_that_merges_with_the_template_is_reported(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("smollm2"), "{{ messages[0].content }} The")
    segments = chat.segments(Conversation.user("A cat."), target="re it is")
    assert segments.note["target_merge"] == [" The", " There"]
    assert segments.input_ids == chat.encode(Conversation.user("A cat."))
    assert chat.decode(segments.target_ids) == "re it is"
    assert "target_merge" not in chat.segments(Conversation.user("A cat."), target=" end").note


def test_a_target_inside_a_trace_that_the_prompt_opened_is_flagged(tokenizer_of: Any) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"), source)
    segments = chat.segments(STORY, target="Sure")
    assert segments.note["target_inside_trace"] is True
    assert chat.decode(segments.ids).endswith("<think>\nSure")


def test_prefill_continues_the_answer_and_is_kept(tokenizer_of: Any) -> None:
    for name, template in (("llama2", "llama-2"), ("smollm2", None), ("llama3_1", None)):
        tokenizer = tokenizer_of(name)
        chat = ChatTokenizer(tokenizer_of.codec(name), template)
        rows = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure, the"}]
        expected = tokenizer.apply_chat_template(
            rows, chat_template=chat.template.source, continue_final_message=True
        )["input_ids"]
        assert list(chat.encode(Conversation.from_dicts(rows))) == expected
        assert list(chat.encode(Conversation.user("Hi"), prefill="Sure, the")) == expected
        segments = chat.segments(Conversation.user("Hi"), Slot(text=" x"), prefill="Sure, the")
        assert segments.prefill == "Sure, the"
        assert segments.input_ids == chat.encode(segments.conversation, prefill="Sure, the")
        changed = chat.with_slot(segments, chat.codec.encode("a big")[-1:])
        assert changed.prefill == "Sure, the"
        assert chat.decode(changed.input_ids).endswith("Sure, the")


def test_bos_stands_there_exactly_once(tokenizer_of: Any) -> None:
    for name, template in (
        ("llama3_1", None),  # template and tokenizer both write it
        ("llama2", "zephyr"),  # only the tokenizer does
        ("llama3", None),  # only the template does
        ("deepseek_v3", None),  # the config claims that the tokenizer does
    ):
        tokenizer = tokenizer_of(name)
        ids = ChatTokenizer(tokenizer_of.codec(name), template).encode(STORY)
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1, name


def test_a_bos_that_is_the_first_role_marker_is_not_lost(
    tokenizer_of: Any,
) -> None:
    tokenizer = tokenizer_of("smollm2")
    chat = ChatTokenizer(tokenizer)
    ids = chat.encode(CHAT)
    assert (
        list(ids)
        == tokenizer.apply_chat_template(CHAT.to_dicts(), add_generation_prompt=True)["input_ids"]
    )
    assert ids.count(tokenizer.bos_token_id) == 5
