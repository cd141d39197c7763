"""The endpoint backend against a real HTTP server: retries, limits, secrets, both protocols."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from judgezoo.backends import ChatReply, ChatRequest
from judgezoo.backends.config import Capabilities, EndpointConfig
from judgezoo.backends.endpoint import EndpointBackend
from judgezoo.backends.limits import AdaptiveGate, TokenBucket, backoff_s
from judgezoo.errors import BackendError
from judgezoo.testing import StubServer, completion

KEY = "sk-verysecret-1234567890abcdef"


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.time += seconds
            if seconds:
                self.slept.append(seconds)


def ask(text: str = "hello", **fields: object) -> ChatRequest:
    return ChatRequest(messages=({"role": "user", "content": text},), max_tokens=8, **fields)  # type: ignore[arg-type]


def endpoint(server: StubServer, **fields: object) -> tuple[EndpointBackend, FakeClock]:
    clock = FakeClock()
    config = EndpointConfig(model="stub", base_url=server.url, **fields)  # type: ignore[arg-type]
    return EndpointBackend(config, clock=clock), clock


def test_the_request_on_the_wire_holds_role_and_content_only(server: StubServer) -> None:
    backend, _ = endpoint(server)
    request = ChatRequest(
        messages=({"role": "user", "content": "hi", "input_ids": "1"},),
        max_tokens=5,
        temperature=0.0,
        stop=("x",),
        seed=3,
    )
    reply = backend.generate([request])[0]
    assert reply.text == "ok" and reply.status == "ok" and reply.served_model == "stub-1"
    assert server.requests[0] == {
        "model": "stub",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "stop": ["x"],
        "seed": 3,
    }


def test_retry_after_is_honored_and_attempts_are_counted(server: StubServer) -> None:
    def answer(number: int, path: str, body: dict) -> tuple[int, dict[str, str], bytes]:
        if number < 2:
            return 429, {"retry-after": "7"}, b'{"error": {"message": "slow down"}}'
        return 200, {"x-request-id": "r1"}, completion("fine")

    server.answer = answer
    backend, clock = endpoint(server)
    reply = backend.generate([ask()])[0]
    assert (reply.text, reply.attempts, reply.request_id) == ("fine", 3, "r1")
    assert clock.slept == [7.0, 7.0]
    assert reply.wait_s == pytest.approx(14.0)


@pytest.mark.parametrize(("status", "attempts"), [(500, 4), (503, 4), (400, 1), (401, 1), (404, 1)])
def test_only_transient_failures_are_retried(
    server: StubServer, status: int, attempts: int
) -> None:
    server.answer = lambda n, p, b: (status, {}, b'{"error": {"message": "no"}}')
    backend, clock = endpoint(server, max_attempts=4)
    reply = backend.generate([ask()])[0]
    assert reply.status == "provider_error" and reply.attempts == attempts
    assert len(server.requests) == attempts and len(clock.slept) == attempts - 1
    assert reply.choices == () and str(status) in (reply.error or "")


def test_a_failed_request_leaves_its_neighbors_alone_and_in_order(server: StubServer) -> None:
    def answer(number: int, path: str, body: dict) -> tuple[int, dict[str, str], bytes]:
        text = body["messages"][0]["content"]
        if text == "bad":
            return 400, {}, b'{"error": {"message": "bad request"}}'
        return 200, {}, completion(f"re {text}")

    server.answer = answer
    backend, _ = endpoint(server)
    replies = backend.generate([ask(t) for t in ("a", "bad", "b", "c", "d")])
    assert [reply.text for reply in replies] == ["re a", "", "re b", "re c", "re d"]
    assert [reply.status for reply in replies] == ["ok", "provider_error", "ok", "ok", "ok"]


@pytest.mark.parametrize("body", [b"{not json", b"{}", b'{"choices": []}', b"[1, 2]", b""])
def test_a_malformed_answer_is_retried_then_reported(server: StubServer, body: bytes) -> None:
    server.answer = lambda n, p, b: (200, {}, body if n == 0 else completion("second"))
    backend, _ = endpoint(server)
    reply = backend.generate([ask()])[0]
    assert reply.text == "second" and reply.attempts == 2


def test_a_dead_server_ends_as_a_status_without_an_exception() -> None:
    config = EndpointConfig(model="m", base_url="http://127.0.0.1:9/v1", max_attempts=3)
    reply = EndpointBackend(config, clock=FakeClock()).generate([ask()])[0]
    assert reply.status == "provider_error" and reply.attempts == 3
    assert "no response" in (reply.error or "")


def test_context_overflow_and_content_filter_have_their_own_status(server: StubServer) -> None:
    messages = [
        "This model's maximum context length is 10",
        "request (9 tokens) exceeds the available context size (8 tokens)",
        "triggered content_filter policy",
    ]
    server.answer = lambda n, p, b: (
        400,
        {},
        json.dumps({"error": {"message": messages[n]}}).encode(),
    )
    backend, _ = endpoint(server)
    found = [backend.generate([ask()])[0].status for _ in messages]
    assert found == ["context_overflow", "context_overflow", "content_filter"]


def test_the_deadline_ends_the_retries(server: StubServer) -> None:
    server.answer = lambda n, p, b: (429, {"retry-after": "50"}, b"{}")
    backend, clock = endpoint(server, deadline_s=120.0)
    reply = backend.generate([ask()])[0]
    assert reply.status == "deadline" and reply.attempts == 3 and clock.time <= 120
    server.answer = lambda n, p, b: (429, {"retry-after": "9999"}, b"{}")
    assert backend.generate([ask()])[0].attempts == 1


def test_the_key_never_shows(
    server: StubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    server.answer = lambda n, p, b: (401, {}, echo)
    with caplog.at_level(logging.DEBUG, logger="judgezoo"):
        backend, _ = endpoint(server, api_key_env="MY_KEY")
        reply = backend.generate([ask()])[0]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    shown = [repr(reply), repr(backend), repr(backend.config), json.dumps(backend.identity())]
    assert all(KEY not in text and "verysecret" not in text for text in [*shown, caplog.text])
    assert "MY_KEY" not in json.dumps(backend.identity())


def test_a_missing_key_names_the_variable() -> None:
    with pytest.raises(BackendError, match="OPENAI_API_KEY"):
        EndpointBackend(EndpointConfig(model="gpt"))
    with pytest.raises(BackendError, match="OTHER_KEY"):
        EndpointBackend(EndpointConfig(model="gpt", api_key_env="OTHER_KEY"))


@pytest.mark.parametrize("url", ["http://u:p@host/v1", "https://host/v1?key=1", "ftp://host", "x"])
def test_an_address_that_may_hold_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        EndpointConfig(model="m", base_url=url)


def test_an_unsupported_parameter_is_an_error_or_is_listed(server: StubServer) -> None:
    abilities = Capabilities(seed=False, temperature=False)
    backend, _ = endpoint(server, capabilities=abilities)
    with pytest.raises(BackendError, match="temperature, seed"):
        backend.generate([ask(seed=1)])
    assert server.requests == []
    backend, _ = endpoint(server, capabilities=abilities, allow_dropped=("seed", "temperature"))
    reply = backend.generate([ask(seed=1)])[0]
    assert set(reply.dropped) == {"temperature", "seed"}
    assert "seed" not in server.requests[0] and "temperature" not in server.requests[0]


def test_several_samples_are_single_requests_where_n_is_missing(server: StubServer) -> None:
    server.answer = lambda n, p, b: (200, {}, completion(f"sample {b['seed']}"))
    backend, _ = endpoint(server, capabilities=Capabilities(n=False))
    reply = backend.generate([ask(n=3, seed=5)])[0]
    assert [c.text for c in reply.choices] == ["sample 5", "sample 6", "sample 7"]
    assert reply.usage.input_tokens == 30 and reply.attempts == 3


def test_concurrency_stays_within_its_bound(server: StubServer) -> None:
    barrier = threading.Barrier(2, timeout=10)

    def answer(number: int, path: str, body: dict) -> tuple[int, dict[str, str], bytes]:
        barrier.wait()
        return 200, {}, completion("x")

    server.answer = answer
    backend, _ = endpoint(server, max_concurrency=2)
    assert [r.text for r in backend.generate([ask(str(i)) for i in range(6)])] == ["x"] * 6
    assert server.most_active == 2


def test_cost_counts_cached_tokens_at_their_price(server: StubServer) -> None:
    body = json.loads(completion("x"))
    body["usage"]["prompt_tokens_details"] = {"cached_tokens": 4}
    server.answer = lambda n, p, b: (200, {}, json.dumps(body).encode())
    backend, _ = endpoint(server, input_price=2.0, cached_price=1.0, output_price=5.0)
    reply = backend.generate([ask()])[0]
    assert reply.cost == pytest.approx((6 * 2 + 4 * 1 + 4 * 5) / 1e6)
    assert endpoint(server)[0].generate([ask()])[0].cost is None


def test_prefill_is_the_last_turn(server: StubServer) -> None:
    abilities = Capabilities(prefill="continue_final_message")
    backend, _ = endpoint(server, capabilities=abilities)
    backend.generate([ask(prefill="Verdict:")])
    sent = server.requests[0]
    assert sent["messages"][-1] == {"role": "assistant", "content": "Verdict:"}
    assert sent["continue_final_message"] is True and sent["add_generation_prompt"] is False


def test_a_repeated_prefill_is_cut_off_and_an_ignored_n_is_noticed(server: StubServer) -> None:
    server.answer = lambda n, p, b: (200, {}, completion("Verdict: safe"))
    backend, _ = endpoint(server, capabilities=Capabilities(prefill="assistant_turn"))
    assert backend.generate([ask(prefill="Verdict:")])[0].text == " safe"
    reply = backend.generate([ask(n=2)])[0]
    assert reply.status == "provider_error" and "set capabilities n=false" in (reply.error or "")


def test_token_ids_are_continued_as_they_are(server: StubServer) -> None:
    paths: list[str] = []

    def answer(number: int, path: str, body: dict) -> tuple[int, dict[str, str], bytes]:
        paths.append(path)
        choice = {
            "index": 0,
            "text": " on",
            "finish_reason": "stop",
            "logprobs": {"top_logprobs": [{"a": -0.5, "b": -1.5}]},
        }
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        shown = {"id": "1", "object": "text_completion", "created": 0, "model": "stub-1"}
        return 200, {}, json.dumps({**shown, "choices": [choice], "usage": usage}).encode()

    server.answer = answer
    able = Capabilities(token_ids="completions")
    backend, _ = endpoint(server, capabilities=able, extra_body={"min_p": 0})
    request = ask(prompt_ids=(5, 6, 7), seed=3, temperature=1.0, stop=("x",), top_logprobs=2)
    reply = backend.generate([request])[0]
    assert paths == ["/v1/completions"]
    assert server.requests[0] == {
        "model": "stub",
        "prompt": [5, 6, 7],
        "max_tokens": 8,
        "temperature": 1.0,
        "seed": 3,
        "stop": ["x"],
        "logprobs": 2,
        "min_p": 0,
    }
    assert (reply.text, reply.usage.input_tokens) == (" on", 3)
    assert reply.choices[0].logprobs == ((("a", -0.5), ("b", -1.5)),)
    assert "prompt" not in reply.sent


def test_token_ids_are_refused_where_the_server_is_not_said_to_take_them(
    server: StubServer,
) -> None:
    backend, _ = endpoint(server)
    with pytest.raises(BackendError, match="token_ids=completions"):
        backend.generate([ask(prompt_ids=(1,))])
    backend, _ = endpoint(server, capabilities=Capabilities(token_ids="completions"))
    with pytest.raises(BackendError, match="as they are"):
        backend.generate([ask(prompt_ids=(1,), schema={"type": "object"})])
    assert server.requests == []
    with pytest.raises(ValueError, match="anthropic protocol carries no token ids"):
        EndpointConfig(
            model="m", provider="anthropic", capabilities=Capabilities(token_ids="completions")
        )


def test_an_ability_that_is_not_there_changes_no_identity(server: StubServer) -> None:
    plain, _ = endpoint(server)
    able, _ = endpoint(server, capabilities=Capabilities(token_ids="completions"))
    assert "token_ids" not in plain.identity()["capabilities"]
    assert able.identity()["capabilities"]["token_ids"] == "completions"


def test_anthropic_moves_system_text_and_merges_turns(server: StubServer) -> None:
    pytest.importorskip("anthropic")
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-stub",
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4},
    }
    server.answer = lambda n, p, b: (200, {"request-id": "q"}, json.dumps(message).encode())
    config = EndpointConfig(
        model="claude", provider="anthropic", base_url=server.url.removesuffix("/v1")
    )
    backend = EndpointBackend(config, clock=FakeClock())
    turns = (("system", "s"), ("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    request = ChatRequest(
        messages=tuple({"role": r, "content": c} for r, c in turns), max_tokens=9, temperature=None
    )
    reply = backend.generate([request])[0]
    assert server.requests[0] == {
        "model": "claude",
        "system": "s",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "a\n\nb"},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ],
    }
    assert (reply.text, reply.choices[0].finish_reason, reply.request_id) == ("yes", "length", "q")
    assert reply.usage.input_tokens == 7 and reply.usage.cached_tokens == 4
    with pytest.raises(BackendError, match="temperature"):
        backend.generate([ask()])


def test_the_bucket_makes_the_rate_hold() -> None:
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    assert [bucket.take(1) for _ in range(60)] == [0.0] * 60
    assert bucket.take(1) == pytest.approx(1.0)
    assert bucket.take(1) == pytest.approx(2.0)
    clock.time += 2.0
    assert bucket.take(1) == pytest.approx(1.0)
    assert TokenBucket(None, clock).take(1e9) == 0.0


def test_the_gate_halves_and_recovers_slowly() -> None:
    gate = AdaptiveGate(8)
    gate.overloaded()
    assert gate.limit == 4
    for _ in range(4):
        gate.succeeded()
    assert gate.limit == 5
    for _ in range(4):
        gate.overloaded()
    assert gate.limit == 1
    for _ in range(100):
        gate.succeeded()
    assert gate.limit == 8


def test_backoff_grows_within_its_bounds_and_is_repeatable() -> None:
    waits = [backoff_s("k", attempt, 60.0) for attempt in range(1, 12)]
    assert waits == [backoff_s("k", attempt, 60.0) for attempt in range(1, 12)]
    assert all(0 < wait <= min(60.0, 2.0**i) for i, wait in enumerate(waits))
    assert backoff_s("other", 5, 60.0) != waits[4]


def test_the_address_is_the_one_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.invalid/v1")
    backend = EndpointBackend(EndpointConfig(model="gpt"))
    assert backend.identity()["base_url"] == "https://api.openai.com/v1"
    assert "elsewhere" not in str(backend._driver._client.base_url)  # type: ignore[attr-defined]


def test_an_empty_batch_sends_nothing(server: StubServer) -> None:
    backend, _ = endpoint(server)
    assert backend.generate([]) == [] and server.requests == []
    assert isinstance(ChatReply().text, str)
