"""Fakes for tests of this package and of others: chats, neutral prompts, a local chat server.

Nothing here is used when judging.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from judgezoo.assets import AssetStore

__all__ = ["StubServer", "chat", "completion", "placeholder_prompts"]

Answer = Callable[[int, str, dict[str, Any]], tuple[int, dict[str, str], bytes]]


def chat(question: str, answer: str) -> list[dict[str, str]]:
    """Return a conversation of one question and its answer."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def placeholder_prompts(*asset_ids: str) -> dict[str, str]:
    """Return a neutral text for each asset, with the slots of the published one.

    Args:
        asset_ids: ids of the catalog.
    """
    store = AssetStore()
    prompts = {}
    for asset_id in asset_ids:
        slots = [slot.split(" (")[0] for slot in store.row(asset_id).placeholders]
        lines = [f"slot {number}: {slot} end" for number, slot in enumerate(slots)]
        prompts[asset_id] = "\n".join([f"Neutral text in place of {asset_id}.", *lines, "Verdict:"])
    return prompts


def completion(text: str | None, **message: Any) -> bytes:
    """Return the body of a chat completion that holds one text."""
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text, **message},
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "stub-1",
        "choices": [choice],
        "usage": usage,
    }
    return json.dumps(body).encode()


class StubServer:
    """A chat server on 127.0.0.1 whose answers a test writes; it records every request.

    Attributes:
        answer: function of the request's number, path and body that returns status, headers and
            body of the response.
        requests: bodies of the requests, in order of arrival.
        headers: their headers, with names in lower case.
        most_active: most requests handled at once.
    """

    def __init__(self) -> None:
        """Listen on a free port in a thread of its own."""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.active = self.most_active = 0
        self.answer: Answer = lambda number, path, body: (200, {}, completion("ok"))
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: D102
                length = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(length))
                with outer._lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                    outer.active += 1
                    outer.most_active = max(outer.most_active, outer.active)
                status, headers, data = outer.answer(number, self.path, body)
                with outer._lock:
                    outer.active -= 1
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: D102
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Base address of the API."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
