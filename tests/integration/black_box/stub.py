"""A chat-completions server that counts, answers by rule and can misbehave."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = list[dict[str, str]]
Rule = Callable[[Messages, int], str]
FAULTS = ("429", "500", "timeout", "malformed", "cut", "no_choices")


@dataclass
class Stub:
    """What the server does and what it saw.

    Attributes:
        rules: answer to messages and seed, by model name.
        faults: which fault, by a request's text and attempt; None for a proper answer.
        answered: proper answers by model name.
        attempts: HTTP requests by model name.
        tokens: completion tokens by model name, as reported.
        honors: of `n`, `logprobs` and `token_ids`, those that the server does not ignore.
        bodies: what was asked, as it came.
    """

    rules: dict[str, Rule]
    faults: Callable[[str, int], str | None] = lambda text, attempt: None
    answered: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    honors: frozenset[str] = frozenset()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    address: str = ""


def digest(messages: Messages) -> int:
    return int(hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:8], 16)


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """Serve on a free local port for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/completions") and not self.path.endswith("/chat/completions"):
                self._continue(asked)
                return
            name, messages = asked["model"], asked["messages"]
            text = json.dumps(messages)
            with stub.lock:
                stub.bodies.append(asked)
                stub.attempts[name] += 1
                stub.seen[text] += 1
                stub.keys |= {key for m in messages for key in m}
                fault = stub.faults(text, stub.seen[text])
                if fault is not None:
                    stub.failed[fault] += 1
            if name not in stub.rules:
                self._send(404, {"error": {"message": f"no model {name}", "code": "model"}})
            elif fault is not None:
                self._misbehave(fault)
            else:
                self._answer(name, messages, asked)

        def _answer(self, name: str, messages: Messages, asked: dict[str, Any]) -> None:
            text = stub.rules[name](messages, int(asked.get("seed", 0)))
            tokens = len(text.split())
            with stub.lock:
                stub.answered[name] += 1
                stub.tokens[name] += tokens
            body = completion(name, text, tokens)
            body["usage"]["prompt_tokens"] = sum(len(m["content"].split()) for m in messages)
            choice = body["choices"][0]
            if "logprobs" in stub.honors and asked.get("logprobs"):
                top = {"token": "a", "logprob": -0.5, "bytes": None}
                choice["logprobs"] = {"content": [{**top, "top_logprobs": [top]}]}
            if "n" in stub.honors:
                body["choices"] = [{**choice, "index": k} for k in range(asked.get("n", 1))]
            self._send(200, body)

        def _continue(self, asked: dict[str, Any]) -> None:
            """A server that ignores ids reads them as text."""
            with stub.lock:
                stub.bodies.append(asked)
            read = len(asked["prompt"]) if "token_ids" in stub.honors else len(str(asked["prompt"]))
            self._send(
                200,
                {
                    "id": "x",
                    "object": "text_completion",
                    "created": 0,
                    "model": asked["model"],
                    "choices": [{"index": 0, "text": "more", "finish_reason": "length"}],
                    "usage": {
                        "prompt_tokens": read,
                        "completion_tokens": 1,
                        "total_tokens": read + 1,
                    },
                },
            )

        def _misbehave(self, fault: str) -> None:
            if fault == "429":
                body = {"error": {"message": "slow down"}}
                self._send(429, body, {"Retry-After": "0"})
            elif fault == "500":
                self._send(500, {"error": {"message": "broken"}})
            elif fault == "timeout":
                time.sleep(9)
                self.close_connection = True
            elif fault == "malformed":
                self._raw(200, b'{"id": "x", "choices": [{"index": 0, "mess')
            elif fault == "cut":
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "5000")
                self.end_headers()
                self.wfile.write(b'{"id": "x"')
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif fault == "no_choices":
                self._send(200, {**completion("m", "", 0), "choices": []})
            elif fault == "content_filter":
                found = completion("m", "", 0)
                found["choices"][0]["finish_reason"] = "content_filter"
                self._send(200, found)

        def _send(self, code: int, body: Any, headers: dict[str, str] | None = None) -> None:
            self._raw(code, json.dumps(body).encode(), headers)

        def _raw(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        request_queue_size = 256  # no connection waits longer than a client's patience
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    stub.address = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(name: str, text: str, tokens: int) -> Any:
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": f"{name}-2026",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens},
    }
