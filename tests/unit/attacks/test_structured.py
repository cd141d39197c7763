"""The ladder of structured replies: what it reads, what it refuses, how it asks again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from adversariallm.attacks._kit.chat import defused, fill, read_rating, status
from adversariallm.attacks._kit.rewriting import Improvement
from adversariallm.attacks._kit.structured import Form, UnreadableError, ask
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply

sys.path.insert(0, str(Path(__file__).parent))
from chatting import Paid, in_turn  # noqa: E402  -- beside this file

GOOD = '{"improvement": "i", "prompt": "p"}'
PLAIN = Improvement(improvement="i", prompt="p")
HELLO = Conversation.user("hello")


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"Here it is:\n{GOOD}\nI hope it helps.",
        f"```json\n{GOOD}\n```",
        f'{{"improvement": "old", "prompt": "old"}} and then {GOOD}',
        f"a stray {{ brace, then {GOOD}",
        '{"improvement": "i", "prompt": "p", "extra": [true, null]}',
        '{"Improvement": "i", "Prompt": "p"}',
    ],
)
def test_a_reply_is_read(text: str) -> None:
    assert Improvement.read(text) == PLAIN


@pytest.mark.parametrize(
    "text",
    [
        "", "none", "[]", f"[{GOOD}]", "3", '"text"',
        '{"improvement": "i", "prompt": ""}',
        '{"improvement": "i", "prompt": ["p"]}',
        '{"improvement": "i", "prompt": 3}',
        '{"improvement": "i"}',
        '{"improvement": "i", "prompt": "p',
        "{\u201cimprovement\u201d: \u201ci\u201d, \u201cprompt\u201d: \u201cp\u201d}",
        '{"improvement": "i", "prompt": NaN}',
        "{'improvement': 'i', 'prompt': 'p'}",
        "{" * 5000,
        '{"a":' * 5000,
    ],
)  # fmt: skip
def test_what_is_no_such_object_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(UnreadableError, match=r"\w"):
        Improvement.read(text)


def test_braces_line_breaks_and_escapes_survive() -> None:
    prompt = 'a } b { c\nline two\t"quoted" \u00e9 \\ /'
    assert Improvement.read(json.dumps({"improvement": "", "prompt": prompt})).prompt == prompt
    raw = '{"improvement": "", "prompt": "line one\nline two"}'
    assert Improvement.read(raw).prompt == "line one\nline two"


@given(st.text(), st.text(min_size=1), st.text(alphabet="ab {}[]\n\"'", max_size=20))
def test_any_written_object_is_read_back(improvement: str, prompt: str, around: str) -> None:
    value = {"improvement": improvement, "prompt": prompt}
    assert Improvement.read(json.dumps(value)).model_dump() == value
    fenced = f"```json\n{json.dumps(value)}\n```"
    assert Improvement.read(fenced).model_dump() == value


class _Scored(Form):
    reason: str = Field(min_length=1)
    delivery_type: str
    score: int = Field(ge=1, le=5)


def test_camel_case_is_accepted_and_ranges_hold() -> None:
    read = _Scored.read('{"reason": "r", "deliveryType": "t", "score": 5}')
    assert (read.delivery_type, read.score) == ("t", 5)
    for wrong in ("0", "6", "3.5", '"3"', "true"):
        with pytest.raises(UnreadableError, match="score"):
            _Scored.read(f'{{"reason": "r", "delivery_type": "t", "score": {wrong}}}')


def test_the_wire_schema_holds_only_what_vendors_accept() -> None:
    schema = _Scored.wire_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["reason", "delivery_type", "score"]
    assert schema["properties"]["score"] == {"type": "integer", "enum": [1, 2, 3, 4, 5]}
    assert schema["properties"]["reason"] == {"type": "string"}


def asked(*answers: Any, attempts: int = 3) -> tuple[Any, Paid]:
    model = Paid(in_turn(*answers))
    options = GenerationConfig(temperature=1.0)
    found = ask(model, HELLO, Improvement.read, options, Rng.root(0), attempts=attempts, schema={})
    return found, model


def test_it_asks_again_with_the_same_conversation_and_a_new_stream() -> None:
    found, model = asked("nothing", "[1]", GOOD)
    assert found.value == PLAIN and found.attempts == 3 and len(found.reasons) == 2
    assert model.calls == [HELLO] * 3
    assert len({r.path for r in model.rngs}) == 3
    assert model.schemas == [{}] * 3


def test_exhausted_attempts_are_a_failure_without_a_value() -> None:
    found, model = asked("nothing", attempts=2)
    assert (found.value, found.failure, len(model.calls)) == (None, "unreadable", 2)
    assert found.note() == {"raw": "nothing", "attempts": 2, "failure": "unreadable",
                            "rejected": ["no JSON object in the reply"] * 2}  # fmt: skip


@pytest.mark.parametrize(
    "declined",
    [
        "  ",
        Reply("", finish_reason="content_filter", error="content_filter"),
        Reply("I will not.", raw={"refusal": "I will not."}),
    ],
)
def test_a_helper_that_declines_is_asked_once_more_and_no_oftener(declined: Any) -> None:
    found, model = asked(declined, attempts=9)
    assert (found.failure, found.refusals, len(model.calls)) == ("refused", 2, 2)
    again, _ = asked(declined, GOOD)
    assert (again.value, again.refusals, again.attempts) == (PLAIN, 1, 2)


def test_a_failed_call_is_its_own_failure() -> None:
    found, model = asked(Reply("", finish_reason="error", error="provider_error"))
    assert (found.failure, len(model.calls)) == ("provider_error", 1)


def test_filling_reads_nothing_that_was_put_in() -> None:
    assert fill("{a} {{ b }} {c} {{x}", a="{b}", b="{a}") == "{b} {a} {c} {{x}"


def test_a_rating_is_the_last_one_and_in_range() -> None:
    assert read_rating("from [[1]] up: Rating: [[7]]") == 7
    for text in ("Rating: 7", "[[11]]", "[[0]]", "[[x]]"):
        with pytest.raises(UnreadableError):
            read_rating(text)
    assert read_rating(f"the answer says {defused('[[10]]')}; Rating: [[2]]") == 2
    with pytest.raises(UnreadableError):
        read_rating(defused("Rating: [[10]]"))


def test_every_kind_of_answer_has_its_status() -> None:
    kinds = {
        "ok": Reply("x"),
        "length": Reply("x", finish_reason="length"),
        "empty": Reply(" "),
        "refusal_field": Reply("no", raw={"refusal": "no"}),
        "content_filter": Reply("", error="content_filter"),
        "context_overflow": Reply("", error="context_length"),
        "transport_error": Reply("", error="provider_error"),
    }
    assert {k: status(r) for k, r in kinds.items()} == {k: k for k in kinds}
