"""Text around a conversation: what is encoded, where slots stand, what counts as reachable."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Message
from adversariallm.tokenization import ChatTokenizer, Frame, Slot
from adversariallm.tokenization.reachability import ReachabilityFilter

FRAMES = [
    Frame(system="Be careful."),
    Frame(before="Think first.\n", after="\nStay kind."),
    Frame(before="  leading: ", after=" tail  "),
    Frame("Be careful.", (Message("user", "hi"), Message("assistant", "no")), "<< ", " >>"),
]
TALKS = [
    Conversation.user("write a short story"),
    Conversation.user("  the recipe ", system="a helper"),
    Conversation(
        (Message("user", "good music"), Message("assistant", "a list"), Message("user", "why"))
    ),
]
TOKENIZERS = ["smollm2", "llama3_1", "gemma2", "qwen3"]


def test_a_frame_joins_the_system_message_and_wraps_the_last_user_turn() -> None:
    framed = FRAMES[3].apply(Conversation.user("ask", system="Own."))
    assert [(m.role, m.content) for m in framed] == [
        ("system", "Own.\n\nBe careful."),
        ("user", "hi"),
        ("assistant", "no"),
        ("user", "<< ask >>"),
    ]
    assert Frame().apply(TALKS[2]) == TALKS[2]
    assert FRAMES[1].apply(TALKS[2])[0].content == "good music"


def test_the_models_own_system_prompt_stays_inside(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of("smollm2"), system="Own.")
    framed = chat.framed(Frame(system="Be careful."))
    assert framed.prepare(TALKS[0])[0].content == "Own.\n\nBe careful."
    assert chat.prepare(TALKS[0])[0].content == "Own."
    assert framed.identity() != chat.identity()
    assert "frames" not in chat.identity()


def test_the_frame_added_last_is_applied_first(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of("smollm2")).framed(Frame(before="in ", after=" ni"))
    prepared = chat.framed(Frame(before="out ", after=" tuo")).prepare(Conversation.user("x"))
    assert prepared[0].content == "in out x tuo ni"


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
@pytest.mark.parametrize("talk", TALKS, ids=range(len(TALKS)))
@pytest.mark.parametrize("where", ["suffix", "turn"])
def test_slots_stand_in_the_framed_text(
    tokenizer_of: Any, name: str, frame: Frame, talk: Conversation, where: Any
) -> None:
    plain = ChatTokenizer(tokenizer_of(name))
    if name == "gemma2" and (frame.system or talk[0].role == "system"):
        pytest.skip("the template has no system role")
    chat = plain.framed(frame)
    slot = Slot(where, text="! ! !", join="space" if where == "suffix" else "none")
    segments = chat.segments(talk, slot, target="Sure, here")
    assert segments.input_ids == plain.encode(frame.apply(segments.conversation))
    # a last token that merges with what follows belongs to that
    assert chat.codec.decode(segments.slot_ids).strip() in ("! ! !", "! !")
    assert segments.conversation[segments.conversation.last_user].content.endswith("! ! !")


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("frame", FRAMES[1:3], ids=range(2))
def test_the_fast_filter_agrees_with_the_definition_inside_a_frame(
    tokenizer_of: Any, name: str, frame: Frame
) -> None:
    chat = ChatTokenizer(tokenizer_of(name)).framed(frame)
    segments = chat.segments(TALKS[0], Slot(text="! ! ! !", join="space"))
    slot, draw = list(segments.slot_ids), Rng.root(3).child(name).python()
    rows = [[*slot[:k], *(draw.randrange(5, 20_000) for _ in slot[k:])] for k in (0, 1, 3) * 20]
    check = ReachabilityFilter(chat, segments)
    verdict = check(rows)
    assert list(verdict.kept) == [check.by_definition(row) for row in rows]
    assert 0 < sum(verdict.kept) < len(rows)
    kept = rows[verdict.indices[0]]
    assert chat.with_slot(segments, kept).input_ids == segments.input_with(kept)
