"""One of our own models as the model of a judge: `judges.<name>.backend=model:NAME`.

It brings batch invariance, constrained decoding and the judging ledger to judgezoo, which asks it
through the backend protocol and knows nothing else of it. Weights load at the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from adversariallm.core.budget import Meter
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import ChatModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply, digest
from adversariallm.models.metered import MeteredModel

if TYPE_CHECKING:
    from judgezoo.backends import ChatReply, ChatRequest

PREFIX = "model:"


def chosen_backend(
    options: Mapping[str, Any], load: Callable[[str], ChatModel], meter: Meter | None = None
) -> dict[str, Any]:
    """Options of a judge, a backend `model:NAME` in them replaced by the object it stands for."""
    chosen = dict(options)
    backend = str(chosen.get("backend") or "")
    if backend.startswith(PREFIX):
        name = backend.removeprefix(PREFIX)
        chosen["backend"] = ModelBackend(name, lambda: load(name), meter)
    return chosen


class ModelBackend:
    """A local or remote model of ours, metered under the role `judge`."""

    def __init__(
        self, name: str, load: Callable[[], ChatModel], meter: Meter | None = None
    ) -> None:
        """Nothing is loaded yet.

        Args:
            name: what stands after `model:`.
            load: gives the model when the first question comes.
            meter: charged for every call; a meter of its own if None.
        """
        self.name = name
        self._load = load
        self._meter = meter or Meter()

    @cached_property
    def _model(self) -> MeteredModel:
        return MeteredModel(self._load(), self._meter, role="judge")

    @cached_property
    def _card(self) -> Any:
        from adversariallm.models.options import resolve

        return resolve(self.name)

    def identity(self) -> Mapping[str, Any]:
        """What fixes the model's behavior; asks for no weights."""
        from adversariallm.models.identity import identity

        return {"model": identity(self._card)}

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        from adversariallm.models.loading import load_chat

        return load_chat(self._card).tokenizer

    @cached_property
    def context_length(self) -> int:
        """Longest prompt and answer, in tokens; read from the configuration."""
        from transformers import AutoConfig

        from adversariallm.models.sources import fetch

        if self._card.context_length is not None:
            return int(self._card.context_length)
        config = AutoConfig.from_pretrained(fetch(self._card, weights=False))
        return int(config.get_text_config().max_position_embeddings)

    def generate(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer chat requests; each sample's stream belongs to its request and index alone."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: ChatRequest) -> ChatReply:
        from judgezoo.backends import ChatChoice, ChatReply

        talk = Conversation.from_dicts(request.messages)
        generation = GenerationConfig(
            temperature=request.temperature or 0.0,
            top_p=request.top_p or 1.0,
            top_k=request.top_k,
            max_new_tokens=request.max_tokens,
            stop=request.stop,
        )
        rng = Rng.root(request.seed or 0).child("judge", digest(list(request.messages)))
        given = ModelInput(talk, prefill=request.prefill or "")
        streams = [rng.child(k) for k in range(request.n)]
        replies = self._model.generate(
            [given] * request.n, generation, streams, json_schema=request.schema
        )
        failed = next((r for r in replies if r.error), None)
        if failed is not None:
            overflow = failed.error == "context_length"
            status = "context_overflow" if overflow else "provider_error"
            return ChatReply(status=status, error=failed.error)
        choices = tuple(
            ChatChoice(text=r.text, finish_reason=_reason(r), reasoning=r.reasoning)
            for r in replies
        )
        return ChatReply(choices=choices, served_model=self._model.name)

    def label_logprobs(
        self, prompts: Sequence[Sequence[int]], labels: Sequence[int]
    ) -> list[list[float]]:
        """Log-probability of the label ids after each prompt, over the whole vocabulary."""
        found = self._model.next_logits(prompts).logits.float().log_softmax(-1)
        rows: list[list[float]] = found[:, list(labels)].tolist()
        return rows

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
    ) -> list[list[int]]:
        """Greedy continuations, without the end token."""
        unused = Conversation.user("")
        replies = self._model.generate(
            [ModelInput(unused, tuple(p)) for p in prompts],
            GenerationConfig(max_new_tokens=max_new_tokens),
            [Rng.root(0)] * len(prompts),
        )
        return [list(r.ids or ())[: -1 if r.finish_reason == "stop" else None] for r in replies]


def _reason(reply: Reply) -> str:
    return "length" if reply.finish_reason in ("length", "context") else "stop"
