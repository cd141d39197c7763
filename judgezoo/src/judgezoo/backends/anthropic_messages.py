"""Anthropic's messages protocol: system text apart, alternating turns, a mandatory limit.

One call is one attempt: the SDK's retries are off, and no key appears in any message.
"""

from __future__ import annotations

from typing import Any

from judgezoo.backends.base import ChatChoice, ChatReply, ChatRequest, Usage
from judgezoo.backends.config import EndpointConfig
from judgezoo.backends.wire import attempt
from judgezoo.errors import MissingExtra

__all__ = ["AnthropicDriver"]

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class AnthropicDriver:
    """Sends requests through the ``anthropic`` SDK."""

    def __init__(self, config: EndpointConfig, key: str | None) -> None:
        """Make the client.

        Args:
            config: the endpoint.
            key: the secret; None for servers that want none.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        try:
            import anthropic
        except ImportError:
            raise MissingExtra("the anthropic provider", "anthropic", "anthropic") from None
        self._anthropic = anthropic
        self._config = config
        self._key = key
        self._client = anthropic.Anthropic(
            api_key=key or "none",
            base_url=config.address(),
            max_retries=0,
            timeout=config.timeout_s,
        )

    def call(self, request: ChatRequest, timeout_s: float) -> ChatReply:
        """Make one attempt; see `judgezoo.backends.wire.Driver`."""
        parameters = self._parameters(request)

        def send() -> ChatReply:
            raw = self._client.messages.with_raw_response.create(**parameters, timeout=timeout_s)
            return self._reply(raw.parse(), raw.headers.get("request-id"), parameters)

        return attempt(self._anthropic, self._anthropic.AnthropicError, self._key, send)

    def _parameters(self, request: ChatRequest) -> dict[str, Any]:
        """Return the SDK's arguments; sampling parameters travel in the extra body."""
        system = [m["content"] for m in request.messages if m["role"] in {"system", "developer"}]
        turns: list[dict[str, str]] = []
        for message in request.messages:
            if message["role"] in {"system", "developer"}:
                continue
            if turns and turns[-1]["role"] == message["role"]:
                turns[-1]["content"] += "\n\n" + message["content"]
            else:
                turns.append({"role": message["role"], "content": message["content"]})
        if request.prefill is not None:
            turns.append({"role": "assistant", "content": request.prefill})
        extra = dict(self._config.extra_body)
        for name in ("temperature", "top_p", "top_k"):
            value = getattr(request, name)
            if value is not None:
                extra[name] = value
        parameters: dict[str, Any] = {
            "model": self._config.model,
            "messages": turns,
            "max_tokens": request.max_tokens + self._config.reasoning_allowance,
        }
        if system:
            parameters["system"] = "\n\n".join(system)
        if request.stop:
            parameters["stop_sequences"] = list(request.stop)
        if extra:
            parameters["extra_body"] = extra
        return parameters

    def _reply(self, message: Any, request_id: str | None, parameters: dict[str, Any]) -> ChatReply:
        """Translate a message."""
        blocks = message.content
        text = "".join(b.text for b in blocks if b.type == "text")
        thinking = "".join(b.thinking for b in blocks if b.type == "thinking")
        finish = message.stop_reason or "unknown"
        choice = ChatChoice(
            text=text, finish_reason=_FINISH.get(finish, finish), reasoning=thinking or None
        )
        usage = message.usage
        cached = getattr(usage, "cache_read_input_tokens", None) or 0
        written = getattr(usage, "cache_creation_input_tokens", None) or 0
        return ChatReply(
            choices=(choice,),
            usage=Usage(
                input_tokens=usage.input_tokens + cached + written,
                output_tokens=usage.output_tokens,
                cached_tokens=cached,
            ),
            served_model=message.model,
            request_id=request_id,
            sent={k: v for k, v in parameters.items() if k not in {"messages", "system"}},
        )
