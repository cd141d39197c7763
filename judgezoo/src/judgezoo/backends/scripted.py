"""A backend that answers from a script: for tests, dry runs and recorded replies.

It calls no model; what it answers depends only on the request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from judgezoo.backends.base import ChatChoice, ChatReply, ChatRequest

__all__ = ["ScriptedBackend"]

Script = str | Sequence[str | ChatReply] | Callable[[ChatRequest], str | ChatReply]


class ScriptedBackend:
    """Answers with one text, with a list of texts in turn, or with a function of the request."""

    def __init__(self, script: Script, *, model: str = "scripted") -> None:
        """Keep the script.

        Args:
            script: one text for all requests; a list, repeated from its start when used up; or a
                function of the request.
            model: name to report as the served model.
        """
        self._script = script
        self._model = model
        self.requests: list[ChatRequest] = []

    def generate(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer every request from the script and remember the request."""
        return [self._answer(request) for request in requests]

    def identity(self) -> Mapping[str, Any]:
        """Return the model name and a hash of a fixed script."""
        identity = {"type": "scripted", "model": self._model}
        if not callable(self._script):
            identity["script"] = hashlib.sha256(repr(self._script).encode()).hexdigest()
        return identity

    def _answer(self, request: ChatRequest) -> ChatReply:
        if callable(self._script):
            answer = self._script(request)
        elif isinstance(self._script, str):
            answer = self._script
        else:
            answer = self._script[len(self.requests) % len(self._script)]
        self.requests.append(request)
        if isinstance(answer, ChatReply):
            return answer
        return ChatReply(choices=(ChatChoice(text=answer),) * request.n, served_model=self._model)
