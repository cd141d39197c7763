from __future__ import annotations

import dataclasses

import pytest

from adversariallm.core.types import (
    Behavior,
    Candidate,
    Conversation,
    Message,
    ModelInput,
    Segments,
    Span,
    Task,
)

TALK = Conversation(
    (Message("system", "s"), Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
)


def behavior(**changes: object) -> Behavior:
    return dataclasses.replace(Behavior("b1", TALK, "c", True), **changes)


def test_the_last_user_message_is_found_by_role() -> None:
    assert TALK.last_user == 3
    assert TALK.append("assistant", "d").last_user == 3
    with pytest.raises(ValueError, match="no user message"):
        _ = Conversation((Message("system", "s"),)).last_user


def test_conversations_survive_the_plain_format_and_never_change() -> None:
    assert Conversation.from_dicts(TALK.to_dicts()) == TALK
    assert TALK.with_content(3, "z")[3].content == "z"
    assert TALK[3].content == "c"


def test_the_key_belongs_to_the_content() -> None:
    assert TALK.key == Conversation.from_dicts(TALK.to_dicts()).key
    assert TALK.key != TALK.with_content(0, "t").key


@pytest.mark.parametrize(
    ("role", "content", "error"), [("tool", "x", ValueError), ("user", 3, TypeError)]
)
def test_bad_messages_are_refused(role: str, content: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="message"):
        Message(role, content)  # type: ignore[arg-type]


def test_behaviors_survive_json() -> None:
    full = behavior(target="Sure", category="x", extra={"k": 1}, reference=["4"])
    assert Behavior.from_dict(full.to_dict()) == full
    assert full.key != behavior(target="Yes", category="x", extra={"k": 1}, reference=["4"]).key


SEGMENTS = Segments(
    ids=(1, 2, 3, 4, 5, 6, 7, 8),
    spans=(
        Span("template", 0, 1),
        Span("prompt", 1, 2),
        Span("slot", 2, 4),
        Span("post", 4, 6),
        Span("target", 6, 8),
    ),
    conversation=TALK,
)


def test_segments_cut_the_ids() -> None:
    assert SEGMENTS.before == (1, 2)
    assert SEGMENTS.slot_ids == (3, 4)
    assert SEGMENTS.target_ids == (7, 8)
    assert SEGMENTS.input_ids == (1, 2, 3, 4, 5, 6)
    assert SEGMENTS.slot_positions == (2, 3)


def test_a_single_slot_takes_any_length_and_two_slots_their_own() -> None:
    assert SEGMENTS.input_with([9, 9, 9]) == (1, 2, 9, 9, 9, 5, 6)
    spans = (Span("slot", 0, 1), Span("prompt", 1, 3), Span("slot", 3, 4), Span("post", 4, 8))
    both = dataclasses.replace(SEGMENTS, spans=spans)
    assert both.input_with([90, 91]) == (90, 2, 3, 91, 5, 6, 7, 8)
    with pytest.raises(ValueError, match="3 slot ids for 2"):
        both.input_with([1, 2, 3])


def test_a_model_input_is_text_or_embeddings() -> None:
    with pytest.raises(ValueError, match="either"):
        ModelInput()


def test_candidates_are_built_from_whatever_names_an_input() -> None:
    assert Candidate.of(TALK).inputs[0].conversation == TALK
    assert Candidate.of(SEGMENTS, 0.5).inputs[0].ids == SEGMENTS.input_ids
    assert Candidate.of(SEGMENTS, 0.5).losses == (0.5,)


def test_a_task_evaluates_on_its_fit_set_unless_told_otherwise() -> None:
    one, two = behavior(), behavior(id="b2")
    assert Task((one,)).evaluated == (one,)
    assert Task((one, two), (two,)).evaluated == (two,)
    with pytest.raises(ValueError, match="2 behaviors"):
        _ = Task((one, two)).behavior
    with pytest.raises(ValueError, match="at least one"):
        Task(())
