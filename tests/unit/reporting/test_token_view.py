"""The token view against segments made by hand, and what it says of ids that no text gives."""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.types import Conversation
from adversariallm.evaluation.fakes import fake_document
from adversariallm.models.loading import load_chat
from adversariallm.models.options import resolve
from adversariallm.models.tiny import tiny_model
from adversariallm.reporting.html import render_report
from adversariallm.reporting.token_view import KINDS, token_view
from adversariallm.tokenization import ChatTokenizer

ASKED = [{"role": "user", "content": "Tell me about bread"}]


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    found: ChatTokenizer = tiny_model().chat
    return found


def _step(chat: ChatTokenizer, content: str) -> dict[str, Any]:
    sent = [{"role": "user", "content": content}]
    ids = list(chat.encode(Conversation.from_dicts(sent)))
    return {"model_input": sent, "model_input_tokens": ids, "prefill": ""}


@pytest.mark.parametrize(
    ("content", "attack"),
    [
        ("Tell me about bread ! !", "! !"),
        ("x y Tell me about bread", "x y"),
        ("Something else entirely", "Something else entirely"),
    ],
)
def test_tokens_of_the_attack_are_marked(chat: ChatTokenizer, content: str, attack: str) -> None:
    view = token_view(chat, _step(chat, content), ASKED)
    assert view is not None and view["exact"]
    marked = "".join(p for p, k in view["pieces"] if KINDS[k] in ("slot", "merge"))
    assert attack.replace(" ", "") in marked.replace(" ", "")
    assert "bread" not in marked or "bread" in attack
    assert len(view["pieces"]) == len(chat.encode(Conversation.user(content)))


def test_nothing_is_marked_without_an_attack(chat: ChatTokenizer) -> None:
    view = token_view(chat, _step(chat, ASKED[0]["content"]), ASKED)
    assert view is not None
    assert not any(KINDS[k] in ("slot", "merge") for _, k in view["pieces"])


def test_ids_that_the_text_does_not_give_are_said_to_be_so(chat: ChatTokenizer) -> None:
    step = _step(chat, "Tell me about bread ! !")
    step["model_input_tokens"].append(step["model_input_tokens"][0])
    view = token_view(chat, step, ASKED)
    assert view is not None and not view["exact"]
    assert token_view(chat, {"model_input": None, "model_input_tokens": None}, ASKED) is None


def test_the_report_holds_the_view_where_it_has_a_tokenizer(chat: ChatTokenizer) -> None:
    document = fake_document([[1.0]])
    document["runs"][0]["steps"][0] |= _step(chat, "Tell me about bread ! !")
    document["runs"][0]["original_prompt"] = ASKED
    assert '"pieces":' in render_report([document], chats={"toy": chat})
    assert '"pieces":' not in render_report([document])


def test_a_token_that_straddles_the_edge_of_the_attack_is_shown_as_a_merge() -> None:
    real = load_chat(resolve("smollm2-135m"))
    view = token_view(
        real, _step(real, "Look at these people"), [{"role": "user", "content": "Look at the"}]
    )
    assert view is not None and view["exact"]
    kinds = {piece: KINDS[kind] for piece, kind in view["pieces"]}
    assert (kinds[" at"], kinds[" these"], kinds[" people"]) == ("prompt", "merge", "slot")
