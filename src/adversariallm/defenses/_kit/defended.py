"""A model behind a defense: the base of all defenses, which hands everything on unchanged.

A defense overrides `answer`, and where gradients pass also what it changes of the white-box calls.
It books nothing: each reply says what it cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from adversariallm.core.budget import Usage
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import (
    ChatModel,
    DefenseInfo,
    Direction,
    Gradient,
    Logits,
    Losses,
    Needs,
    Objective,
    SteerableModel,
    WhiteBoxModel,
)
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply
from adversariallm.defenses._kit.requests import Request

if TYPE_CHECKING:
    import torch

    from adversariallm.tokenization import ChatTokenizer

Ask = Callable[[Sequence[Request]], list[Reply]]
"""Asks the protected model, with the decoding options of the call; one reply per request."""


class Defended:
    """The protected model; what a defense does not override passes through.

    Attributes:
        model: the model inside, possibly defended itself.
        info: the defense's row.
        config: its options.
        preparation: what making this defense cost (calibration, a direction); booked as set-up.
    """

    def __init__(
        self, model: ChatModel, info: DefenseInfo, config: FrozenConfig, *,
        preparation: Usage | None = None,
    ) -> None:  # fmt: skip
        """Protect `model`.

        Raises:
            NeedsError: the defense needs more of the model than it gives.
        """
        check_model(model, info, config)
        self.model = model
        self.info = info
        self.config = config
        inner: Usage = getattr(model, "preparation", Usage())
        self.preparation = inner + (preparation or Usage())

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def gives(self) -> Needs:
        """What of the model still passes."""
        return self.model.gives & self.info.passes

    def identity(self) -> Mapping[str, Any]:
        """Identity of the model and of the defense around it."""
        return {
            "model": dict(self.model.identity()),
            "defense": {
                "name": self.info.name,
                "version": self.info.version,
                "options": self.config.semantic(),
            },
        }

    # Text

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One reply per input, from the defended model.

        Raises:
            NeedsError: an input is embeddings and the defense reads text.
        """

        def ask(requests: Sequence[Request]) -> list[Reply]:
            if not requests:
                return []
            replies = self.model.generate(
                [r.input for r in requests],
                generation,
                [r.rng for r in requests],
                json_schema=json_schema,
            )
            return [
                self._said(reply, request in arrived)
                for reply, request in zip(replies, requests, strict=True)
            ]

        if Needs.EMBEDDINGS in self.gives and all(_is_soft(item) for item in inputs):
            return self.model.generate(inputs, generation, rngs, json_schema=json_schema)
        requests = [
            Request.read(item, rng, who=self.info.name)
            for item, rng in zip(inputs, rngs, strict=True)
        ]
        arrived = set(requests)
        return self.answer(requests, ask)

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """What the defense makes of the requests; `ask` is called as few times as possible."""
        return ask(requests)

    def _said(self, reply: Reply, unchanged: bool) -> Reply:
        """The reply with what the bare model said, known only where it read the very request."""
        if isinstance(self.model, Defended):
            return reply if unchanged else replace(reply, undefended=None)
        return replace(reply, undefended=reply.text if unchanged and reply.error is None else None)

    # White box

    def _inner(self, need: Needs) -> WhiteBoxModel:
        if need not in self.gives:
            given = ", ".join(str(n.name).lower() for n in self.gives)
            raise NeedsError(
                f"{self.model.name!r} behind defense {self.info.name!r} does not give "
                f"{str(need.name).lower()}, only {given}: use knowledge=unaware, which attacks "
                "the model without it"
            )
        return cast("WhiteBoxModel", self.model)

    def around(self) -> AbstractContextManager[None]:
        """What every loss, gradient and logit is computed inside of; nothing here."""
        return nullcontext()

    @property
    def chat(self) -> ChatTokenizer:
        """Template and tokenizer through which ids reach the model."""
        return self._inner(Needs.TOKENS).chat

    @property
    def num_embeddings(self) -> int:
        """V, the number of rows of the input embedding."""
        return self._inner(Needs.TOKENS).num_embeddings

    @property
    def context_length(self) -> int:
        """Longest input plus output, in tokens."""
        return self._inner(Needs.TOKENS).context_length

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """Loss of each target after its input."""
        inner = self._inner(Needs.LOGITS)
        with self.around():
            return inner.losses(inputs, targets, objective=objective, shared=shared)

    def gradient(
        self,
        input_ids: Sequence[int],
        slot: Sequence[int],
        target: Sequence[int],
        *,
        objective: Objective | None = None,
        slot_embeddings: torch.Tensor | None = None,
        shared: int = 0,
    ) -> Gradient:
        """Gradient at positions `slot`."""
        inner = self._inner(Needs.GRADIENTS)
        with self.around():
            return inner.gradient(
                input_ids,
                slot,
                target,
                objective=objective,
                slot_embeddings=slot_embeddings,
                shared=shared,
            )

    def next_logits(self, inputs: Sequence[Sequence[int]], *, shared: int = 0) -> Logits:
        """`[W, V]` float32 logits after each input."""
        inner = self._inner(Needs.LOGITS)
        with self.around():
            return inner.next_logits(inputs, shared=shared)

    def soft_losses(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
    ) -> Losses:
        """Losses of inputs given as `[P, d]` embedding rows."""
        inner = self._inner(Needs.EMBEDDINGS)
        with self.around():
            return inner.soft_losses(inputs, targets, objective=objective)

    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        """`[n, V]` float32 gradient with respect to the one-hot rows."""
        return self._inner(Needs.GRADIENTS).token_scores(slot_gradient)

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """`[P, d]` float32 vectors that the embedding module gives for `ids`."""
        return self._inner(Needs.GRADIENTS).embed(ids)

    def embedding_matrix(self) -> torch.Tensor:
        """`[V, d]` float32 vectors of all ids."""
        return self._inner(Needs.GRADIENTS).embedding_matrix()

    def refusal_direction(self, *groups: Sequence[Conversation], **options: Any) -> Direction:
        """The model's residual direction whose ablation lowers refusal most."""
        inner = cast("SteerableModel", self._inner(Needs.HIDDEN))
        return inner.refusal_direction(*groups, **options)

    def generate_without(
        self,
        direction: torch.Tensor,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
    ) -> list[Reply]:
        """Replies with a direction ablated from the residual stream."""
        inner = cast("SteerableModel", self._inner(Needs.HIDDEN))
        return inner.generate_without(direction, inputs, generation, rngs)


def check_model(model: ChatModel, info: DefenseInfo, config: FrozenConfig) -> None:
    """Refuse a model that cannot have this defense around it.

    Raises:
        NeedsError: the defense needs more of the model than it gives.
    """
    wanted = info.supplies(config)
    lacking = wanted.model & ~bare(model).gives | wanted.inside & ~model.gives
    if lacking:
        missing = ", ".join(str(need.name).lower() for need in lacking)
        raise NeedsError(
            f"defense {info.name!r} needs {missing} of the model, which {model.name!r} does "
            "not give here; use a local model, put the defense further inside, or choose an "
            f"option of it that needs less (`adversariallm explain {info.name}`)"
        )


def bare(model: ChatModel) -> ChatModel:
    """The model inside all defenses."""
    while isinstance(model, Defended):
        model = model.model
    return model


def _is_soft(item: Conversation | ModelInput) -> bool:
    return isinstance(item, ModelInput) and item.embeddings is not None
