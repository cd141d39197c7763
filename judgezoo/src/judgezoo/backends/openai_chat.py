"""The OpenAI chat-completions protocol, as spoken by OpenAI and by compatible servers.

One call is one attempt: the SDK's retries are off, and no key appears in any message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from judgezoo.backends.base import ChatChoice, ChatReply, ChatRequest, Usage
from judgezoo.backends.config import EndpointConfig
from judgezoo.backends.wire import attempt

__all__ = ["OpenAIDriver"]


class OpenAIDriver:
    """Sends requests through the ``openai`` SDK."""

    def __init__(self, config: EndpointConfig, key: str | None) -> None:
        """Make the client.

        Args:
            config: the endpoint.
            key: the secret; None for servers that want none.
        """
        import openai

        self._openai = openai
        self._config = config
        self._key = key
        self._client = openai.OpenAI(
            api_key=key or "none",
            base_url=config.address(),
            max_retries=0,
            timeout=config.timeout_s,
        )

    def call(self, request: ChatRequest, timeout_s: float) -> ChatReply:
        """Make one attempt; see `judgezoo.backends.wire.Driver`."""
        ids = request.prompt_ids
        parameters = self._parameters(request) if ids is None else self._continued(request, ids)
        endpoint = self._client.chat.completions if ids is None else self._client.completions

        def send() -> ChatReply:
            raw: Any = endpoint.with_raw_response.create(**parameters, timeout=timeout_s)
            return self._reply(raw.parse(), raw.headers, parameters)

        return attempt(self._openai, self._openai.OpenAIError, self._key, send)

    def _continued(self, request: ChatRequest, ids: tuple[int, ...]) -> dict[str, Any]:
        """Return the SDK's arguments for continuing token ids."""
        chat = self._parameters(request)
        kept = ("model", "temperature", "top_p", "seed", "stop", "n", "extra_body")
        return {
            **{name: chat[name] for name in kept if name in chat},
            "prompt": list(ids),
            "max_tokens": request.max_tokens + self._config.reasoning_allowance,
            **({} if request.top_logprobs is None else {"logprobs": request.top_logprobs}),
        }

    def _parameters(self, request: ChatRequest) -> dict[str, Any]:
        """Return the SDK's arguments."""
        config = self._config
        messages = [{"role": m["role"], "content": m["content"]} for m in request.messages]
        extra = dict(config.extra_body)
        if request.prefill is not None:
            messages.append({"role": "assistant", "content": request.prefill})
            if config.effective_capabilities().prefill == "continue_final_message":
                extra |= {"continue_final_message": True, "add_generation_prompt": False}
        if request.top_k is not None:
            extra["top_k"] = request.top_k
        optional = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop": list(request.stop) or None,
            "n": request.n if request.n > 1 else None,
            "logprobs": True if request.top_logprobs is not None else None,
            "top_logprobs": request.top_logprobs,
            "response_format": self._response_format(request),
            "extra_body": extra or None,
        }
        limit = request.max_tokens + config.reasoning_allowance
        return {
            "model": config.model,
            "messages": messages,
            config.token_field(): limit,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _response_format(self, request: ChatRequest) -> dict[str, Any] | None:
        if request.schema is None:
            return None
        if self._config.effective_capabilities().schema_mode == "json_mode":
            return {"type": "json_object"}
        schema = {"name": "answer", "schema": dict(request.schema), "strict": True}
        return {"type": "json_schema", "json_schema": schema}

    def _reply(
        self, completion: Any, headers: Mapping[str, str], parameters: Mapping[str, Any]
    ) -> ChatReply:
        """Translate a completion."""
        choices = tuple(_choice(choice) for choice in completion.choices)
        if not choices:
            raise ValueError("no choices")
        return ChatReply(
            choices=choices,
            usage=_usage(completion.usage),
            served_model=completion.model,
            system_fingerprint=getattr(completion, "system_fingerprint", None),
            request_id=headers.get("x-request-id"),
            sent={k: v for k, v in parameters.items() if k not in ("messages", "prompt")},
        )


def _choice(choice: Any) -> ChatChoice:
    if not hasattr(choice, "message"):  # of /completions
        return ChatChoice(
            text=choice.text or "",
            finish_reason=choice.finish_reason or "unknown",
            logprobs=_continued_logprobs(choice.logprobs),
        )
    message = choice.message
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    return ChatChoice(
        text=message.content or "",
        finish_reason=choice.finish_reason or "unknown",
        refusal=getattr(message, "refusal", None),
        reasoning=reasoning if isinstance(reasoning, str) else None,
        logprobs=_logprobs(choice.logprobs),
    )


def _logprobs(logprobs: Any) -> tuple[tuple[tuple[str, float], ...], ...] | None:
    if logprobs is None or not logprobs.content:
        return None
    return tuple(
        tuple((top.token, top.logprob) for top in token.top_logprobs) for token in logprobs.content
    )


def _continued_logprobs(logprobs: Any) -> tuple[tuple[tuple[str, float], ...], ...] | None:
    tops = getattr(logprobs, "top_logprobs", None)
    if not tops:
        return None
    return tuple(tuple((top or {}).items()) for top in tops)


def _usage(usage: Any) -> Usage:
    if usage is None:
        return Usage()
    prompt = getattr(usage, "prompt_tokens_details", None)
    output = getattr(usage, "completion_tokens_details", None)
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=getattr(prompt, "cached_tokens", None) or 0,
        reasoning_tokens=getattr(output, "reasoning_tokens", None) or 0,
    )
