from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.core.types import Conversation
from adversariallm.tokenization import ChatTokenizer

ASK = Conversation.user("Hi")


def test_nothing_is_stripped_and_special_tokens_are_removed(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("smollm2"))
    ids = chat.codec.encode("\n  Sure, the sun. <|im_end|>")
    assert chat.decode_reply(chat.encode(ASK), ids) == "\n  Sure, the sun. "


def test_a_leading_blank_of_a_sentencepiece_reply_survives(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama2"), "llama-2")
    new = chat.codec.encode("x Sure")[1:]
    assert chat.decode_reply(chat.encode(ASK), new) == " Sure"
    assert chat.decode_reply(chat.encode(ASK, prefill="Yes,"), new) == " Sure"


def test_a_character_begun_by_the_prefill_is_not_lost(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama2"), "llama-2")
    given = chat.encode(ASK)
    a, b, c = chat.codec.encode("\u20bd")[-3:]
    assert chat.decode_reply(given, [a, b, c]) == "\u20bd"
    assert "\ufffd" in chat.decode_reply(given, [a, b])


def test_stop_tokens_come_from_every_place(tokenizer_of: Any) -> None:
    llama3 = ChatTokenizer(tokenizer_of.codec("llama3"))
    assert llama3.stops().sources == {"tokenizer": (128001,), "template": (128009,)}
    config = SimpleNamespace(eos_token_id=[128001, 128008])
    assert llama3.stops(config).ids == (128001, 128008, 128009)
    gemma = ChatTokenizer(tokenizer_of.codec("gemma2"))
    assert gemma.stops(SimpleNamespace(eos_token_id=1)).ids == (1, 107)
    assert ChatTokenizer(tokenizer_of.codec("llama2"), "llama-2").stops().ids == (2,)
    assert ChatTokenizer(tokenizer_of.codec("gptoss"), "harmony").stops().sources["template"] == (
        200002,
    )


def test_a_turn_that_ends_in_plain_text_gives_a_stop_string(trained: Any) -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n###\n{% endfor %}"
    stops = ChatTokenizer(trained, source).stops()
    assert stops.strings == ("###",)
    assert "template" not in stops.sources


def test_thinking_is_switched_by_what_the_template_reads(
    tokenizer_of: Any,
) -> None:
    qwen3 = tokenizer_of("qwen3")
    on, off = ChatTokenizer(qwen3, thinking="on"), ChatTokenizer(qwen3, thinking="off")
    assert on.render(ASK).text + "<think>\n\n</think>\n\n" == off.render(ASK).text
    assert on.identity()["template_hash"] != off.identity()["template_hash"]
    high = ChatTokenizer(tokenizer_of.codec("gptoss"), "harmony", thinking="high")
    assert "Reasoning: high" in high.render(ASK).text
    with pytest.raises(ConfigError, match="'high': this chat template offers default, on, off"):
        ChatTokenizer(qwen3, thinking="high")
    with pytest.raises(ConfigError, match="offers default$"):
        ChatTokenizer(tokenizer_of.codec("smollm2"), thinking="off")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<think>\nI think.\n</think>\n\nYes.<|im_end|>", ("\nI think.\n", "\n\nYes.", True)),
        ("<think>\nI think", ("\nI think", "", False)),
        ("Yes.<|im_end|>", (None, "Yes.", True)),
    ],
)
def test_a_trace_and_an_answer_are_kept_apart(
    tokenizer_of: Any, said: str, expected: tuple[str | None, str, bool]
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"), thinking="on")
    assert chat.split_reply(chat.encode(ASK), chat.codec.encode(said)) == expected


def test_a_trace_that_the_prompt_opened_has_no_start_mark(
    tokenizer_of: Any,
) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}"
        "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"), source)
    given = chat.encode(ASK)
    said = chat.codec.encode("I think.\n</think>\n\nYes.<|im_end|>")
    assert chat.split_reply(given, said) == ("I think.\n", "\n\nYes.", True)
    assert chat.split_reply(given, chat.codec.encode("I think")) == ("I think", "", False)


def test_an_empty_trace_written_by_the_template_is_no_trace(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"), thinking="off")
    assert chat.split_reply(chat.encode(ASK), chat.codec.encode("Yes.<|im_end|>")) == (
        None,
        "Yes.",
        True,
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            ("Hm.", "Yes.", True),
        ),
        ("<|channel|>final<|message|>Yes.<|return|>", (None, "Yes.", True)),
        ("<|channel|>analysis<|message|>Hm", ("Hm", "", False)),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", ("Hm.", "", False)),
    ],
)
def test_channels_are_kept_apart(
    tokenizer_of: Any, said: str, expected: tuple[str | None, str, bool]
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("gptoss"), "harmony")
    assert chat.split_reply(chat.encode(ASK), chat.codec.encode(said)) == expected


def test_what_a_template_drops_from_history_is_recorded_and_no_error(
    tokenizer_of: Any,
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"))
    conversation = Conversation.from_dicts(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "<think>\nI think.\n</think>\n\nYes."},
            {"role": "user", "content": "Sure?"},
        ]
    )
    segments = chat.segments(conversation)
    assert segments.input_ids == chat.encode(conversation)
    (altered,) = segments.note["altered"]
    assert altered["message"] == 1 and "I think" in altered["given"]
    assert "I think" not in chat.decode(segments.ids)
