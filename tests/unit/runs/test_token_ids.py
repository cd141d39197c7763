"""Stored token ids sent to a completions server: exactly these ids, labelled as another engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adversariallm.runs import passes
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop
from judgezoo.testing import StubServer, completion


@pytest.fixture
def server() -> Iterator[StubServer]:
    """A server that says how many ids, or words, it read."""
    stub = StubServer()

    def answer(number: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/chat/completions"):
            return 200, {}, completion("by text")
        shown = {"id": "1", "object": "text_completion", "created": 0, "model": "served-1"}
        choice = {"index": 0, "text": " more", "finish_reason": "stop"}
        read = len(body["prompt"])
        usage = {"prompt_tokens": read, "completion_tokens": 1, "total_tokens": read + 1}
        return 200, {}, json.dumps({**shown, "choices": [choice], "usage": usage}).encode()

    stub.answer = answer
    yield stub
    stub.close()


@pytest.fixture(autouse=True)
def own_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adversariallm.models.remote.cache_dir", lambda: tmp_path / "cache")


def transferred(store: Store, server: StubServer, *words: str) -> list[dict[str, Any]]:
    name = f"openai:m@{server.url}"
    extra = [w.replace("NAME", name) for w in words]
    found = passes.transfer(
        f"out={store.root}", f"model={name}", "judge=none", *extra, workshop=Workshop()
    )
    assert found.exit_code == 0
    return [store.read(run_id) for run_id in found.run_ids]


def test_a_server_continues_exactly_the_stored_ids(small_store: Store, server: StubServer) -> None:
    words = "models.NAME.capabilities={token_ids: completions}"
    documents = transferred(small_store, server, words)
    assert len(documents) == 2
    stored = [
        step["model_input_tokens"]
        for document in documents
        for step in small_store.read(document["config"]["parent"]["run_id"])["runs"][0]["steps"]
    ]
    assert sorted(body["prompt"] for body in server.requests) == sorted(stored)
    assert all("messages" not in body for body in server.requests)
    for document in documents:
        (model,) = document["provenance"]["models"]
        assert model["engine"] == "endpoint, token ids or texts: not ours"
        assert model["identity"]["endpoint"]["capabilities"]["token_ids"] == "completions"
        for step in document["runs"][0]["steps"]:
            assert step["model_completions"] == [" more"]
            assert step["completions"][0]["raw"]["engine"] == "completions of token ids"
            assert step["model_input_tokens"]


def test_without_the_ability_the_text_is_sent_and_no_ids_are_claimed(
    small_store: Store, server: StubServer
) -> None:
    documents = transferred(small_store, server)
    assert all("prompt" not in body for body in server.requests)
    for document in documents:
        assert document["provenance"]["models"][0]["engine"] == "endpoint, texts: not ours"
        for step in document["runs"][0]["steps"]:
            assert step["model_completions"] == ["by text"]
            assert step.get("model_input_tokens") is None


def test_a_server_that_read_other_ids_gives_failures_and_no_answers(
    small_store: Store, server: StubServer
) -> None:
    proper = server.answer

    def changed(number: int, path: str, body: dict[str, Any]) -> Any:
        return proper(number, path, {**body, "prompt": [*body["prompt"], 0]})

    server.answer = changed
    words = "models.NAME.capabilities={token_ids: completions}"
    for document in transferred(small_store, server, words):
        for step in document["runs"][0]["steps"]:
            assert step["model_completions"] == [""]
            assert step["completions"][0]["error"] == "ids_not_taken"
