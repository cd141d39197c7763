from __future__ import annotations

import random
from typing import Any

import pytest

from adversariallm.core.errors import UnknownNameError
from adversariallm.core.types import Conversation, Message
from adversariallm.tokenization import ChatTokenizer, list_templates
from adversariallm.tokenization.formats import FOLDER, diff_renderings

WORDS = [
    "sea",
    "sun",
    "  cat ",
    "\n",
    "don't",
    "12.5",
    "\u65e5\u672c",
    "\U0001f642",
    "a b",
    "[x]",
    "",
]
SYSTEM_TURN = [Message("system", "Be brief."), Message("user", "Hello there")]
TALK = [Message("user", "Hello there"), Message("assistant", "Hi."), Message("user", "How?")]


def conversations(count: int, system: bool, seed: int = 0) -> list[Conversation]:
    """Random alternating conversations, with a system message in a third where allowed."""
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        text = lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))  # noqa: E731
        turns = [Message("system", text())] if system and draw.random() < 0.3 else []
        for _ in range(draw.randint(0, 3)):
            turns += [Message("user", text()), Message("assistant", text())]
        out.append(Conversation((*turns, Message("user", text()))))
    return out


@pytest.mark.parametrize(
    ("ours", "folder", "system"),
    [
        ("llama-3", "llama3_1", True),
        ("llama-3", "llama3", True),
        ("qwen-3", "qwen3", True),
        ("gemma", "gemma2", False),
        ("deepseek-v3", "deepseek_v3", True),
        pytest.param("gemma", "gemma3", True, marks=pytest.mark.slow),
    ],
)
def test_ours_renders_byte_equal_to_the_official_one(
    tokenizer_of: Any, ours: str, folder: str, system: bool
) -> None:
    tokenizer = tokenizer_of(folder)
    codec = tokenizer_of.codec(folder)
    mine, official = ChatTokenizer(codec, ours).template, ChatTokenizer(codec).template
    assert diff_renderings(mine, official, conversations(50, system)) == []
    for conversation in conversations(50, system):
        library = tokenizer.apply_chat_template(
            conversation.to_dicts(), tokenize=False, add_generation_prompt=True
        )
        assert mine.text(conversation.messages, True) == library
        finished = conversation.append("assistant", "Sure.")
        if folder != "llama3":  # the first release opens an answer even so
            assert mine.text(finished.messages, False) == official.text(finished.messages, False)


def test_chatml_equals_smollm2_but_for_the_default_system_prompt(
    tokenizer_of: Any,
) -> None:
    tokenizer = tokenizer_of.codec("smollm2")
    mine, official = ChatTokenizer(tokenizer, "chatml"), ChatTokenizer(tokenizer)
    for conversation in conversations(50, True):
        text = official.render(conversation).text
        if conversation[0].role != "system":
            text = text.replace(f"<|im_start|>system\n{official.injected_system}<|im_end|>\n", "")
        assert mine.render(conversation).text == text


@pytest.mark.parametrize(
    ("template", "folder", "with_system", "talk"),
    # Ids printed by mistral-common 1.13.1 (MistralTokenizer.v1 and .v3) for these conversations.
    [
        (
            "mistral-v1",
            "mistral_v1_spm",
            [1, 733, 16289, 28793, 1739, 6817, 28723, 13, 13, 16230, 736, 733, 28748, 16289, 28793],
            [1, 733, 16289, 28793, 22557, 736, 733, 28748, 16289, 28793, 15359, 28723, 2, 733,
             16289, 28793, 1602, 28804, 733, 28748, 16289, 28793],
        ),
        (
            "mistral-v3",
            "mistral_v3_spm",
            [1, 3, 2507, 7585, 29491, 781, 781, 16998, 1504, 4],
            [1, 3, 23325, 1504, 4, 16127, 29491, 2, 3, 2370, 29572, 4],
        ),
    ],
)  # fmt: skip
def test_mistral_ids_equal_the_publishers_library(
    tokenizer_of: Any,
    template: str,
    folder: str,
    with_system: list[int],
    talk: list[int],
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec(folder), template)
    assert list(chat.encode(Conversation(tuple(SYSTEM_TURN)))) == with_system
    assert list(chat.encode(Conversation(tuple(TALK)))) == talk


@pytest.mark.parametrize(
    ("template", "expected"),
    # Printed by fschat 0.2.36 for the same turns; it leaves Llama 2's first BOS to the tokenizer.
    [
        ("vicuna", "Be brief. USER: Hello there ASSISTANT: Hi.</s>USER: How? ASSISTANT:"),
        (
            "llama-2",
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello there [/INST] Hi. </s>"
            "<s>[INST] How? [/INST]",
        ),
        (
            "zephyr",
            "<|system|>\nBe brief.</s>\n<|user|>\nHello there</s>\n<|assistant|>\nHi.</s>\n"
            "<|user|>\nHow?</s>\n<|assistant|>\n",
        ),
    ],
)
def test_older_formats_equal_the_serving_librarys(
    tokenizer_of: Any, template: str, expected: str
) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama2"), template)
    assert chat.render(Conversation((SYSTEM_TURN[0], *TALK))).text == expected


@pytest.mark.parametrize("info", list_templates(), ids=lambda i: i.name)
def test_every_template_renders_every_kind_of_conversation(tokenizer_of: Any, info: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama2"), info.name)
    for conversation in conversations(20, True, seed=1):
        rendered = chat.render(conversation)
        assert rendered.altered == ()
        for span, message, trim in zip(rendered.spans, conversation, rendered.trims, strict=True):
            assert rendered.text[span.start : span.end] == trim(message.content)
        assert rendered.text.endswith(chat.render(Conversation.user("a")).text[-2:])
    ending = chat.template.end_of_turn()
    assert ending.strip() or info.name == "plain"


def test_the_index_and_the_folder_agree() -> None:
    assert [t.name for t in list_templates()] == sorted(p.stem for p in FOLDER.glob("*.jinja"))


def test_a_misspelt_name_suggests_the_right_one(tokenizer_of: Any) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'llama-2'"):
        ChatTokenizer(tokenizer_of.codec("gpt2"), "llama2")


def test_differences_are_shown_line_by_line(tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of.codec("smollm2")
    mine, official = ChatTokenizer(tokenizer, "chatml").template, ChatTokenizer(tokenizer).template
    (diff,) = diff_renderings(mine, official, [Conversation.user("a")])
    assert "--- ours:chatml (conversation 0)" in diff
    assert "+'<|im_start|>system\\n'" in diff
