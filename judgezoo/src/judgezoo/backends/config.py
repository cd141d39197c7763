"""What a user states about a remote model: address, limits, prices, abilities.

It never holds a key, only the name of the environment variable that does.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = ["Capabilities", "EndpointConfig"]


class Capabilities(BaseModel):
    """What an endpoint honors; a request for anything else is an error unless it may be dropped.

    Attributes:
        system_role: system messages.
        temperature: sampling temperature.
        top_p: nucleus sampling.
        top_k: top-k sampling.
        stop: stop strings.
        n: several samples in one request; without it each sample is a request of its own.
        seed: sampling seed.
        logprobs: token log-probabilities.
        schema_mode: strict JSON schema, JSON mode without a schema, or neither.
        prefill: how an answer's beginning is given: as a last assistant turn, so with vLLM's
            ``continue_final_message`` beside it, or not at all.
        token_ids: prompts as token ids, at ``/completions`` (vLLM, llama.cpp); they are ids of the
            server's own tokenizer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    system_role: bool = True
    temperature: bool = True
    top_p: bool = True
    top_k: bool = False
    stop: bool = True
    n: bool = True
    seed: bool = True
    logprobs: bool = True
    schema_mode: Literal["strict", "json_mode", "none"] = "strict"
    prefill: Literal["none", "assistant_turn", "continue_final_message"] = "none"
    token_ids: Literal["none", "completions"] = "none"

    def identity(self) -> dict[str, Any]:
        """JSON form; what is not there is left out, so that it changes no older identity."""
        left_out = {"token_ids"} if self.token_ids == "none" else set[str]()
        return self.model_dump(mode="json", exclude=left_out)


ANTHROPIC_CAPABILITIES = Capabilities(
    temperature=False,
    top_p=False,
    n=False,
    seed=False,
    logprobs=False,
    schema_mode="none",
)


_OWN_ADDRESS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}


class EndpointConfig(BaseModel):
    """One remote model.

    Attributes:
        model: name that the endpoint knows.
        provider: wire protocol: any OpenAI-compatible server, or Anthropic's.
        base_url: address of the server; None for the provider's own, whatever the SDK's
            environment variables say.
        api_key_env: environment variable that holds the key; None for the provider's usual one.
        capabilities: what the endpoint honors; None for the provider's usual set.
        allow_dropped: parameters that may be left out of a request where unsupported.
        max_tokens_field: name of the token limit on the wire (OpenAI's own service wants
            ``max_completion_tokens``, most compatible servers ``max_tokens``); None chooses by
            ``base_url``.
        reasoning_allowance: tokens added to every limit for hidden reasoning.
        extra_body: further fields of every request.
        max_concurrency: requests in flight at once, halved on 429 and recovered slowly.
        rpm: requests per minute, None for no limit.
        tpm: tokens per minute, None for no limit.
        max_attempts: attempts per request.
        timeout_s: seconds for one attempt.
        deadline_s: seconds for all attempts and waits of one request.
        max_backoff_s: longest wait that we choose ourselves.
        max_retry_after_s: longest wait that the server may ask for.
        input_price: price of a million input tokens, None when unknown.
        cached_price: the same for cached input tokens; None means ``input_price``.
        output_price: price of a million output tokens, None when unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    provider: Literal["openai", "anthropic"] = "openai"
    base_url: str | None = None
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    capabilities: Capabilities | None = None
    allow_dropped: tuple[str, ...] = ()
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    reasoning_allowance: int = Field(default=0, ge=0)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    max_concurrency: int = Field(default=8, ge=1)
    rpm: float | None = Field(default=None, gt=0)
    tpm: float | None = Field(default=None, gt=0)
    max_attempts: int = Field(default=6, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)
    deadline_s: float = Field(default=900.0, gt=0)
    max_backoff_s: float = Field(default=60.0, gt=0)
    max_retry_after_s: float = Field(default=300.0, ge=0)
    input_price: float | None = Field(default=None, ge=0)
    cached_price: float | None = Field(default=None, ge=0)
    output_price: float | None = Field(default=None, ge=0)

    @field_validator("base_url")
    @classmethod
    def _no_secrets_in_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("expected an http:// or https:// address")
        if parts.username or parts.password or parts.query:
            raise ValueError("an address with a user, password or query may hold a secret")
        return urlunsplit(parts)

    @model_validator(mode="after")
    def _ids_have_a_protocol(self) -> EndpointConfig:
        if self.provider == "anthropic" and self.effective_capabilities().token_ids != "none":
            raise ValueError(
                "the anthropic protocol carries no token ids; leave token_ids out of capabilities"
            )
        return self

    def effective_capabilities(self) -> Capabilities:
        """Return the stated capabilities, or the provider's usual ones."""
        if self.capabilities is not None:
            return self.capabilities
        return ANTHROPIC_CAPABILITIES if self.provider == "anthropic" else Capabilities()

    def address(self) -> str:
        """Return the address that requests go to."""
        if self.base_url is not None:
            return self.base_url
        return _OWN_ADDRESS[self.provider]

    def key_variable(self) -> str:
        """Return the name of the environment variable that holds the key."""
        usual = "ANTHROPIC_API_KEY" if self.provider == "anthropic" else "OPENAI_API_KEY"
        return self.api_key_env or usual

    def token_field(self) -> str:
        """Return the name of the token limit on the wire."""
        if self.max_tokens_field is not None:
            return self.max_tokens_field
        return "max_completion_tokens" if self.base_url is None else "max_tokens"
