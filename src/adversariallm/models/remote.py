"""A model behind an address, with judgezoo's endpoint backend doing the requests.

It translates between our conversations and the backend's requests. Retries, rate limits, deadlines
and keys are the backend's; a request that failed is a reply with an error code, never data. Exact
token ids are sent where the server continues them; a server that changed their number has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from adversariallm.core.budget import Usage
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import ConfigError, ModelError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, FinishReason, ModelInput, Reply
from adversariallm.models.replies import ReplyCache
from adversariallm.models.sources import cache_dir

if TYPE_CHECKING:
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.options import ModelOptions
    from judgezoo.backends import ChatReply, ChatRequest, EndpointBackend

SEED_BITS = 31
"""Servers take seeds of at most this many bits."""
FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "refusal": "stop",
    "stop_sequence": "stop_string",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
ERRORS: dict[str, tuple[FinishReason, str]] = {
    "context_overflow": ("context", "context_length"),
    "content_filter": ("content_filter", "content_filter"),
}


class RemoteModel:
    """A chat model behind an endpoint; text in, text out."""

    gives = Needs.TEXT

    def __init__(
        self,
        backend: EndpointBackend,
        *,
        name: str,
        system_prompt: str | None = None,
        replies: ReplyCache | None = None,
        active_params: float | None = None,
    ) -> None:
        """Wrap a backend.

        Args:
            backend: sends the requests.
            name: short name for tables.
            system_prompt: system message for conversations that have none.
            replies: keeps what was answered, so that no call is paid for twice.
            active_params: parameters at work per token, as the user says; None leaves the FLOPs of
                every call unknown.
        """
        self.replies = replies
        self.active_params = active_params
        self.backend = backend
        self.name = name
        self.system_prompt = system_prompt

    @classmethod
    def from_card(cls, card: EndpointCard, options: ModelOptions) -> RemoteModel:
        """The model of an endpoint card.

        Raises:
            ModelError: the key is not set, or the provider's package is not installed.
        """
        from judgezoo.backends import EndpointBackend
        from judgezoo.errors import JudgezooError

        try:
            backend = EndpointBackend(endpoint_config(card, options))
        except JudgezooError as error:
            raise ModelError(f"model {card.name!r}: {error}") from None
        replies = ReplyCache(cache_dir() / "replies") if options.reuse_replies else None
        return cls(
            backend,
            name=card.name,
            system_prompt=options.system_prompt,
            replies=replies,
            active_params=options.active_params,
        )

    def identity(self) -> Mapping[str, Any]:
        """Address, model name, abilities and system prompt; the server's weights are unknown."""
        return _identity(self.backend.identity(), self.system_prompt)

    @property
    def continues_openings(self) -> bool:
        """Whether an answer that is begun is continued, and no schema can be enforced instead."""
        able = self.backend.capabilities
        return able.prefill != "none" and able.schema_mode == "none"

    def observed(self) -> Mapping[str, Any]:
        """What the server said it is, so far; for provenance."""
        return self.backend.observed()

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One reply per input, several requests in flight at once.

        Raises:
            ConfigError: the endpoint does not honor an option and none may be dropped; nothing has
                been sent.
        """
        from judgezoo.errors import BackendError

        requests = [
            self._request(item, generation, rng, json_schema)
            for item, rng in zip(inputs, rngs, strict=True)
        ]
        found = [self.replies.get(r.key) if self.replies else None for r in requests]
        missing = [i for i, reply in enumerate(found) if reply is None]
        try:
            answers = self.backend.generate([requests[i] for i in missing])
        except BackendError as error:
            raise ConfigError(f"model {self.name!r}: {error}") from None
        for i, answer in zip(missing, answers, strict=True):
            made = _checked(_reply(answer), requests[i].prompt_ids)
            found[i] = reply = self._with_enforcement(made, json_schema)
            if self.replies is not None:
                self.replies.put(requests[i].key, reply)
        return [self._with_flops(reply) for reply in cast("list[Reply]", found)]

    def _with_flops(self, reply: Reply) -> Reply:
        """The reply with two FLOPs per stated parameter and token, unknown ones where none is."""
        if self.active_params is None:
            return replace(reply, usage=replace(reply.usage, flops=None, flops_2n=None))
        flops = int(2 * self.active_params * reply.usage.tokens)
        usage = replace(reply.usage, flops=flops, flops_2n=flops)
        return replace(reply, usage=usage, raw={**reply.raw, "flops_basis": "active_params"})

    @property
    def _enforcement(self) -> str:
        """How the endpoint holds an answer to a schema; one that cannot is asked in words alone."""
        return self.backend.capabilities.schema_mode

    def _with_enforcement(self, reply: Reply, json_schema: Mapping[str, Any] | None) -> Reply:
        if json_schema is None:
            return reply
        return replace(reply, raw={**reply.raw, "enforcement": self._enforcement})

    def _request(
        self,
        item: Conversation | ModelInput,
        generation: GenerationConfig,
        rng: Rng,
        json_schema: Mapping[str, Any] | None,
    ) -> ChatRequest:
        from judgezoo.backends import ChatRequest

        given = ModelInput(conversation=item) if isinstance(item, Conversation) else item
        if given.conversation is None:
            raise NeedsError(f"model {self.name!r} takes text; embeddings need a local model")
        _refuse_local_options(self.name, generation)
        messages = given.conversation.to_dicts()
        system = self.system_prompt
        if given.ids is None and system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        sampled = generation.temperature > 0 and self.backend.capabilities.seed
        request = ChatRequest(
            messages=tuple(messages),
            max_tokens=generation.max_new_tokens,
            temperature=generation.temperature,
            top_p=None if generation.top_p == 1.0 else generation.top_p,
            top_k=generation.top_k,
            stop=generation.stop,
            seed=rng.seed % (1 << SEED_BITS) if sampled else None,
            schema=json_schema if self._enforcement != "none" else None,
            prefill=None if given.ids is not None else given.prefill or None,
            prompt_ids=given.ids,
        )
        sent = asdict(request)
        if request.prompt_ids is None:
            del sent["prompt_ids"]  # the keys of texts stay as they were
        return replace(request, key=stable_hash([list(rng.path), dict(self.identity()), sent]))


def _refuse_local_options(name: str, generation: GenerationConfig) -> None:
    """Options that no remote protocol carries are an error, never dropped in silence."""
    asked = {
        "min_p": generation.min_p > 0,
        "min_new_tokens": generation.min_new_tokens > 0,
        "log_probs": generation.log_probs,
        "max_reasoning_tokens": generation.max_reasoning_tokens is not None,
    }
    unknown = [f"generation_config.{option}" for option, wanted in asked.items() if wanted]
    if unknown:
        raise ConfigError(f"model {name!r} is remote and cannot honor {', '.join(unknown)}")


def _checked(reply: Reply, ids: tuple[int, ...] | None) -> Reply:
    """Refuse an answer to other ids than were sent: the server counts what it read."""
    if ids is None or reply.error is not None:
        return reply
    read = reply.usage.tokens_processed
    raw = {**reply.raw, "engine": "completions of token ids"}
    if read == len(ids):
        return replace(reply, raw=raw)
    told = f"{len(ids)} token ids were sent and the server read {read or 'an unknown number'}"
    return replace(
        reply, text="", finish_reason="error", error="ids_not_taken", raw={**raw, "error": told}
    )


def _reply(reply: ChatReply) -> Reply:
    """Our reply from the backend's, with the provider's facts in `raw`."""
    facts = {
        "served_model": reply.served_model,
        "system_fingerprint": reply.system_fingerprint,
        "request_id": reply.request_id,
        "attempts": reply.attempts,
        "dropped": list(reply.dropped) or None,
        "error": reply.error,
    }
    usage = Usage(
        queries=1,
        tokens_processed=reply.usage.input_tokens,
        tokens_cached=reply.usage.cached_tokens,
        tokens_generated=reply.usage.output_tokens,
        cost=reply.cost or 0.0,
    )
    raw = {key: value for key, value in facts.items() if value is not None}
    if reply.status != "ok" or not reply.choices:
        reason, code = ERRORS.get(reply.status, ("error", reply.status))
        return Reply("", finish_reason=reason, error=code, raw=raw, usage=usage)
    choice = reply.choices[0]
    reason = FINISH.get(choice.finish_reason, "stop")
    filtered = reason == "content_filter"
    return Reply(
        text=choice.text or choice.refusal or "",
        finish_reason=reason,
        reasoning=choice.reasoning,
        error="content_filter" if filtered else None,
        raw=raw | ({"refusal": choice.refusal} if choice.refusal else {}),
        usage=usage,
    )


def endpoint_config(card: EndpointCard, options: ModelOptions) -> Any:
    """The backend's configuration from card and options."""
    from pydantic import ValidationError

    from judgezoo.backends import EndpointConfig

    names = (
        "api_key_env", "allow_dropped", "reasoning_allowance", "max_concurrency", "rpm", "tpm",
        "input_price", "output_price", "extra_body", "max_tokens_field",
    )  # fmt: skip
    told: dict[str, Any] = {name: getattr(options, name) for name in names}
    told |= {"model": card.model, "provider": card.provider, "base_url": card.base_url}
    try:
        if options.capabilities is not None:
            usual = EndpointConfig(**told).effective_capabilities().model_dump()
            told["capabilities"] = {**usual, **options.capabilities}
        return EndpointConfig(**told)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"model {card.name!r}: {field}: {first['msg']}") from None


class _Unsent:
    """Stands where no request may be sent."""

    def call(self, request: ChatRequest, timeout_s: float) -> ChatReply:
        raise AssertionError("nothing is sent to find out an identity")


def endpoint_identity(card: EndpointCard, options: ModelOptions) -> dict[str, Any]:
    """Identity of an endpoint; needs no key and sends nothing."""
    from judgezoo.backends import EndpointBackend

    backend = EndpointBackend(endpoint_config(card, options), driver=_Unsent())
    return _identity(backend.identity(), options.system_prompt)


def _identity(facts: Mapping[str, Any], system_prompt: str | None) -> dict[str, Any]:
    out = {"endpoint": dict(facts)}
    if system_prompt is not None:
        out["system_prompt"] = {"text": system_prompt}
    return out
