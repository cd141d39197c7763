"""A remote model behind one address: retries, rate limits and concurrency that are ours.

A failed request becomes a reply with a status and leaves its neighbors alone; the key is read from
the environment and never stands in a message, a record or a representation.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from judgezoo.backends.anthropic_messages import AnthropicDriver
from judgezoo.backends.base import ChatReply, ChatRequest, Usage
from judgezoo.backends.config import Capabilities, EndpointConfig
from judgezoo.backends.limits import AdaptiveGate, Clock, SystemClock, TokenBucket, backoff_s
from judgezoo.backends.openai_chat import OpenAIDriver
from judgezoo.backends.wire import CallFailed, Driver
from judgezoo.errors import BackendError

__all__ = ["EndpointBackend"]

_CHARS_PER_TOKEN = 4


class EndpointBackend:
    """Answers chat requests through an endpoint."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        driver: Driver | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Read the key and make the client; nothing is sent.

        Args:
            config: the endpoint.
            driver: replaces the provider's driver, for tests.
            clock: replaces the system clock, for tests.

        Raises:
            BackendError: the provider's own service is asked for and its key is not set.
            MissingExtra: the provider's SDK is not installed.
        """
        self.config = config
        self.capabilities: Capabilities = config.effective_capabilities()
        self._clock = SystemClock() if clock is None else clock
        self._driver = _make_driver(config) if driver is None else driver
        self._served: set[str] = set()
        self._gate = AdaptiveGate(config.max_concurrency)
        self._requests = TokenBucket(config.rpm, self._clock)
        self._tokens = TokenBucket(config.tpm, self._clock)

    def __repr__(self) -> str:
        """Return the model and address, nothing else."""
        return f"EndpointBackend(model={self.config.model!r}, at={self.config.address()!r})"

    def identity(self) -> Mapping[str, Any]:
        """Return what identifies the measuring instrument; limits and prices do not."""
        config = self.config
        return {
            "type": "endpoint",
            "provider": config.provider,
            "base_url": config.address(),
            "model": config.model,
            "capabilities": self.capabilities.identity(),
            "allow_dropped": list(config.allow_dropped),
            "reasoning_allowance": config.reasoning_allowance,
            "extra_body": config.extra_body,
        }

    def observed(self) -> Mapping[str, Any]:
        """Return the model strings and fingerprints that the server has returned so far."""
        return {"served": sorted(self._served)}

    def generate(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer every request, in order.

        Args:
            requests: what to send; several at once, up to the concurrency bound.

        Returns:
            One reply per request; a failed one has a status other than ``ok``.

        Raises:
            BackendError: a request asks for something that the endpoint does not honor and that
                may not be dropped; nothing has been sent.
        """
        prepared = [self._fit(request) for request in requests]
        if not prepared:
            return []
        workers = min(len(prepared), self.config.max_concurrency)
        with ThreadPoolExecutor(workers, thread_name_prefix="judgezoo-endpoint") as pool:
            try:
                return list(pool.map(lambda item: self._answer(*item), prepared))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fit(self, request: ChatRequest) -> tuple[ChatRequest, tuple[str, ...]]:
        """Drop what the endpoint does not honor, where that is allowed."""
        able = self.capabilities
        asked = {
            "temperature": request.temperature is not None and not able.temperature,
            "top_p": request.top_p is not None and not able.top_p,
            "top_k": request.top_k is not None and not able.top_k,
            "seed": request.seed is not None and not able.seed,
            "top_logprobs": request.top_logprobs is not None and not able.logprobs,
            "stop": bool(request.stop) and not able.stop,
            "schema": request.schema is not None and able.schema_mode == "none",
            "prefill": request.prefill is not None and able.prefill == "none",
        }
        unsupported = tuple(name for name, missing in asked.items() if missing)
        forbidden = [name for name in unsupported if name not in self.config.allow_dropped]
        if forbidden:
            raise BackendError(
                f"{self.config.model!r} does not honor {', '.join(forbidden)}; leave it out of the "
                f"request, or allow it with allow_dropped={forbidden!r}"
            )
        if not able.system_role and any(m["role"] == "system" for m in request.messages):
            raise BackendError(
                f"{self.config.model!r} has no system role; put the text into a user message"
            )
        if request.prompt_ids is not None:
            self._require_ids(request)
        cleared: dict[str, Any] = {name: None for name in unsupported if name != "stop"}
        if "stop" in unsupported:
            cleared["stop"] = ()
        return replace(request, **cleared), unsupported

    def _require_ids(self, request: ChatRequest) -> None:
        """Refuse token ids where the server takes none, and what does not go with them."""
        if self.capabilities.token_ids == "none":
            raise BackendError(
                f"{self.config.model!r} is not said to take token ids; if its server continues "
                "token ids at /completions, say so with capabilities token_ids=completions"
            )
        if request.schema is not None or request.prefill is not None:
            raise BackendError(
                "token ids are continued as they are: put the prefill into them, and ask for no "
                "schema"
            )

    def _answer(self, request: ChatRequest, dropped: tuple[str, ...]) -> ChatReply:
        """Answer one request, sample by sample where the endpoint gives one at a time."""
        if request.n == 1 or self.capabilities.n:
            reply = self._with_retries(request)
        else:
            reply = self._sample_by_sample(request)
        return replace(reply, dropped=dropped)

    def _sample_by_sample(self, request: ChatRequest) -> ChatReply:
        replies = []
        for sample in range(request.n):
            seed = None if request.seed is None else request.seed + sample
            key = f"{request.key}#{sample}"
            replies.append(self._with_retries(replace(request, n=1, seed=seed, key=key)))
        failed = next((reply for reply in replies if reply.status != "ok"), None)
        costs = [reply.cost for reply in replies if reply.cost is not None]
        return replace(
            failed or replies[-1],
            choices=() if failed else tuple(reply.choices[0] for reply in replies),
            usage=_total_usage([reply.usage for reply in replies]),
            cost=sum(costs) if costs else None,
            attempts=sum(reply.attempts for reply in replies),
            latency_s=sum(reply.latency_s for reply in replies),
            wait_s=sum(reply.wait_s for reply in replies),
        )

    def _with_retries(self, request: ChatRequest) -> ChatReply:
        """Make attempts until one succeeds, none may help, or the deadline passes."""
        config, clock = self.config, self._clock
        key = request.key or _digest(request)
        started, busy_s = clock.now(), 0.0
        problem = CallFailed("no attempt was made")
        pause: float | None = 0.0
        for attempt in range(1, config.max_attempts + 1):
            paced = max(self._requests.take(1), self._tokens.take(_token_estimate(request)))
            left_s = config.deadline_s - (clock.now() - started)
            if pause is None or max(pause, paced) >= left_s:
                problem = CallFailed(f"gave up waiting: {problem.message}", status="deadline")
                return self._failed(problem, attempt - 1, started, busy_s)
            clock.sleep(max(pause, paced))
            outcome, latency_s = self._attempt(request, started + config.deadline_s)
            busy_s += latency_s
            if isinstance(outcome, ChatReply):
                served = (outcome.served_model, outcome.system_fingerprint)
                self._served.add("/".join(part for part in served if part))
                wait_s = clock.now() - started - busy_s
                cost = self._cost(outcome.usage)
                return replace(
                    outcome, attempts=attempt, latency_s=latency_s, wait_s=wait_s, cost=cost
                )
            problem = outcome
            if not problem.retryable:
                return self._failed(problem, attempt, started, busy_s)
            pause = self._retry_pause(problem, key, attempt)
        return self._failed(problem, config.max_attempts, started, busy_s)

    def _attempt(
        self, request: ChatRequest, deadline: float
    ) -> tuple[ChatReply | CallFailed, float]:
        """Make one attempt in a free slot; returns its outcome and its seconds."""
        with self._gate.slot():
            sent_at = self._clock.now()
            timeout_s = max(0.001, min(self.config.timeout_s, deadline - sent_at))
            outcome: ChatReply | CallFailed
            try:
                outcome = _checked(self._driver.call(request, timeout_s), request)
            except CallFailed as error:
                outcome = error
            latency_s = self._clock.now() - sent_at
        if isinstance(outcome, ChatReply):
            self._gate.succeeded()
        elif outcome.overloaded:
            self._gate.overloaded()
        return outcome, latency_s

    def _retry_pause(self, problem: CallFailed, key: str, attempt: int) -> float | None:
        """Return the seconds before the next attempt; None when the server asks for too many."""
        if problem.retry_after_s is None:
            return backoff_s(key, attempt, self.config.max_backoff_s)
        if problem.retry_after_s > self.config.max_retry_after_s:
            return None
        return problem.retry_after_s

    def _failed(
        self, problem: CallFailed, attempts: int, started: float, busy_s: float
    ) -> ChatReply:
        return ChatReply(
            status=problem.status,
            error=problem.message,
            attempts=attempts,
            wait_s=self._clock.now() - started - busy_s,
        )

    def _cost(self, usage: Usage) -> float | None:
        config = self.config
        if config.input_price is None or config.output_price is None:
            return None
        cached_price = config.input_price if config.cached_price is None else config.cached_price
        fresh = usage.input_tokens - usage.cached_tokens
        return (
            fresh * config.input_price
            + usage.cached_tokens * cached_price
            + usage.output_tokens * config.output_price
        ) / 1e6


def _checked(reply: ChatReply, request: ChatRequest) -> ChatReply:
    """Refuse a reply with too few samples and cut off a repeated prefill.

    Some servers ignore ``n``, some repeat the beginning that they were asked to continue.
    """
    if len(reply.choices) != request.n:
        raise CallFailed(
            f"asked for {request.n} samples, got {len(reply.choices)}; set capabilities n=false"
        )
    head = request.prefill
    if not head or not any(choice.text.startswith(head) for choice in reply.choices):
        return reply
    choices = (replace(choice, text=choice.text.removeprefix(head)) for choice in reply.choices)
    return replace(reply, choices=tuple(choices))


def _make_driver(config: EndpointConfig) -> Driver:
    """Read the key and build the provider's driver."""
    key = os.environ.get(config.key_variable()) or None
    if key is None and config.base_url is None:
        raise BackendError(
            f"the key of {config.provider} is not set; put it into the environment variable "
            f"{config.key_variable()}, or name another one with api_key_env"
        )
    if config.provider == "anthropic":
        return AnthropicDriver(config, key)
    return OpenAIDriver(config, key)


def _total_usage(usages: Sequence[Usage]) -> Usage:
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )


def _token_estimate(request: ChatRequest) -> int:
    """Return a rough number of tokens, for the tokens-per-minute limit only."""
    chars = sum(len(message["content"]) for message in request.messages)
    return chars // _CHARS_PER_TOKEN + request.max_tokens * request.n


def _digest(request: ChatRequest) -> str:
    return hashlib.sha256(repr(request.messages).encode()).hexdigest()[:16]
