"""What a judge may ask of a model: chat texts, or token probabilities at the last position.

Requests and replies are plain data; retries, batching and loading belong to the backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = [
    "Backend",
    "ChatBackend",
    "ChatChoice",
    "ChatReply",
    "ChatRequest",
    "TokenBackend",
    "Usage",
    "backend_identity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One chat completion to make.

    Attributes:
        messages: role and content; only these two leave the process.
        max_tokens: limit on visible new tokens.
        temperature: None leaves it to the model; 0 is greedy.
        top_p: nucleus, None for the default.
        top_k: None for the default.
        stop: stop strings.
        n: number of samples.
        seed: sampling seed, best effort on remote models.
        top_logprobs: number of alternatives per token to return, or None.
        schema: JSON schema of the answer, or None.
        prefill: text that the assistant's answer starts with; not repeated in the reply.
        prompt_ids: token ids to continue, sent in place of the messages; None sends the messages.
        key: the caller's coordinates of this request; kept out of the request itself.
    """

    messages: tuple[Mapping[str, str], ...]
    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    seed: int | None = None
    top_logprobs: int | None = None
    schema: Mapping[str, Any] | None = None
    prefill: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChoice:
    """One sample of a reply.

    Attributes:
        text: visible text, possibly empty.
        finish_reason: stop, length, refusal, content_filter or what the server said.
        refusal: refusal text that the provider returned beside the content.
        reasoning: reasoning text where the provider returns it.
        logprobs: per token, the alternatives as (token text, log-probability).
    """

    text: str
    finish_reason: str = "stop"
    refusal: str | None = None
    reasoning: str | None = None
    logprobs: tuple[tuple[tuple[str, float], ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that the provider booked for one request."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """The outcome of one request; a failure is a status, never an exception.

    Attributes:
        choices: one per sample; empty when ``status`` is not ``ok``.
        status: ok, provider_error, context_overflow, content_filter or deadline.
        error: what went wrong, without secrets; None when ok.
        usage: booked tokens.
        cost: price of the request in the currency of the configured prices, or None.
        served_model: the model string the server returned.
        system_fingerprint: the server's fingerprint, when it gives one.
        request_id: the provider's id of the request.
        attempts: number of attempts made.
        latency_s: seconds of the last attempt.
        wait_s: seconds spent waiting for rate limits and retries.
        dropped: requested parameters that were left out with the caller's permission.
        sent: parameters of the request that reached the wire, without the messages.
    """

    choices: tuple[ChatChoice, ...] = ()
    status: str = "ok"
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    served_model: str | None = None
    system_fingerprint: str | None = None
    request_id: str | None = None
    attempts: int = 1
    latency_s: float = 0.0
    wait_s: float = 0.0
    dropped: tuple[str, ...] = ()
    sent: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Text of the first choice, or an empty string."""
        return self.choices[0].text if self.choices else ""


@runtime_checkable
class ChatBackend(Protocol):
    """Answers chat requests, one reply per request and in their order."""

    def generate(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer every request."""
        ...


@runtime_checkable
class TokenBackend(Protocol):
    """A model whose token probabilities can be read.

    Attributes:
        tokenizer: a transformers tokenizer.
        context_length: longest prompt and answer in tokens.
    """

    tokenizer: Any
    context_length: int

    def label_logprobs(
        self, prompts: Sequence[Sequence[int]], labels: Sequence[int]
    ) -> list[list[float]]:
        """Return natural log-probabilities of the label ids after each prompt.

        The softmax runs over the whole vocabulary, in float32, at the last position.
        """
        ...

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
    ) -> list[list[int]]:
        """Return greedy continuations, without the end token."""
        ...


Backend = ChatBackend | TokenBackend


def backend_identity(backend: Backend) -> dict[str, Any]:
    """Return what identifies a backend, as JSON values.

    Args:
        backend: any object; its ``identity()`` is used when it has one.
    """
    identity = getattr(backend, "identity", None)
    if callable(identity):
        return dict(identity())
    return {"type": type(backend).__name__}
