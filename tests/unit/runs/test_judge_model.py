"""A model of ours behind a judge: same protocol, charged as judging, streams of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adversariallm.core.budget import Meter
from adversariallm.core.types import Reply
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.judge_model import ModelBackend, chosen_backend
from judgezoo.backends import ChatRequest
from judgezoo.backends.base import ChatBackend, TokenBackend


def ask(text: str, **rest: Any) -> ChatRequest:
    return ChatRequest(messages=({"role": "user", "content": text},), max_tokens=5, **rest)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return tiny_model("llama")


def test_every_call_is_charged_as_judging(tiny: Any) -> None:
    meter = Meter()
    backend = ModelBackend("x", lambda: tiny, meter)
    with meter.phase("judging"):
        replies = backend.generate([ask("a"), ask("b", n=2, temperature=1.0)])
        backend.label_logprobs([[5, 6, 7]], [1, 2])
    assert [len(r.choices) for r in replies] == [1, 2]
    used = meter.take()
    assert used.total("judging", role="judge").queries == 4
    assert used.total().queries == 4


def test_answers_depend_on_the_request_alone(tiny: Any) -> None:
    backend = ModelBackend("x", lambda: tiny)
    one = backend.generate([ask("a", temperature=1.0), ask("b", temperature=1.0, n=2)])
    two = backend.generate([ask("b", temperature=1.0, n=2)])
    assert one[1].choices == two[0].choices
    other = backend.generate([ask("b", temperature=1.0, n=2, seed=5)])
    assert other[0].choices != two[0].choices


def test_label_log_probabilities_are_those_of_a_plain_forward(tiny: Any) -> None:
    backend = ModelBackend("x", lambda: tiny)
    prompts = [[5, 6, 7, 8], [9, 10]]
    found = backend.label_logprobs(prompts, [3, 40])
    model = tiny.engine.forward.model
    for ids, row in zip(prompts, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].float()
        assert row == pytest.approx(logits.log_softmax(-1)[[3, 40]].tolist(), abs=1e-5)


def test_a_failed_reply_is_a_status_and_no_text() -> None:
    broken = ScriptedModel([Reply("half", error="context_length", finish_reason="context")])
    (reply,) = ModelBackend("x", lambda: broken).generate([ask("a")])
    assert (reply.status, reply.choices, reply.text) == ("context_overflow", (), "")


def test_nothing_is_loaded_before_the_first_question() -> None:
    def load() -> Any:
        raise AssertionError("loaded too early")

    chosen = chosen_backend(
        {"backend": "model:smollm2-135m", "variant": "official"}, lambda n: load()
    )
    assert isinstance(chosen["backend"], ModelBackend)
    assert chosen["variant"] == "official"
    assert chosen_backend({"backend": "openai:x"}, lambda n: load())["backend"] == "openai:x"


def test_it_serves_chat_and_classifier_judges(smollm2_path: Any) -> None:
    backend = ModelBackend("smollm2-135m", lambda: pytest.fail("weights were loaded"))
    assert isinstance(backend, ChatBackend)
    assert isinstance(backend, TokenBackend)
    assert backend.context_length == 8192
    assert backend.identity()["model"]["dtype"] == "float32"
