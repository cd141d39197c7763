"""The metered model: the only thing that charges a budget.

It passes every call on unchanged and books what the answer says it cost. It computes nothing
itself, and offers nothing that would let work escape the meter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from adversariallm.core.budget import LIMITED_PHASES, Meter, Usage
from adversariallm.core.directions import Account
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import (
    ChatModel,
    DifferentiableModel,
    Gradient,
    Logits,
    Losses,
    Needs,
    Objective,
    Outputs,
    OutputsObjective,
    WhiteBoxModel,
    Work,
)
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply

if TYPE_CHECKING:
    import torch

    from adversariallm.models.directions import RefusalDirection
    from adversariallm.models.local import LocalModel
    from adversariallm.tokenization import ChatTokenizer


class MeteredModel:
    """A model whose calls are charged to a meter under a role.

    Before a call the limits are checked, so that a batch which would pass the query limit is never
    sent; after it the useful work is booked. A prefix that an algorithm shares is booked once: by
    the search at its first use, whoever used it before, and by what is only logged where the search
    has not paid for it.
    """

    def __init__(self, model: ChatModel, meter: Meter, *, role: str = "model") -> None:
        """Charge the calls of `model` to `meter` as `role`."""
        self._model = model
        self._meter = meter
        self.role = role

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def gives(self) -> Needs:
        """What the model gives."""
        return self._model.gives

    @property
    def continues_openings(self) -> bool:
        """Whether an answer that is begun is continued, and no schema can be enforced instead."""
        return bool(getattr(self._model, "continues_openings", False))

    def identity(self) -> Mapping[str, Any]:
        """Identity of the model."""
        return self._model.identity()

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """The model's replies; each is one query, and a defense's own work counts as `defense`."""
        self._meter.check(self.role, queries=len(inputs))
        return self._booked(self._model.generate(inputs, generation, rngs, json_schema=json_schema))

    def _booked(self, replies: list[Reply]) -> list[Reply]:
        usage = sum((reply.usage for reply in replies), Usage())
        self._meter.charge(self.role, usage, executed=sum(reply.executed for reply in replies))
        defense = sum((reply.defense_usage for reply in replies), Usage())
        if defense != Usage():
            self._meter.charge("defense", defense)
        return replies

    def charge_preparation(self) -> None:
        """Book what making the model's defenses cost, once per run, as their set-up."""
        spent: Usage = getattr(self._model, "preparation", Usage())
        if spent != Usage() and self._meter.first(f"preparation:{self._model.name}"):
            with self._meter.phase("setup"):
                self._meter.charge("defense", spent)

    @property
    def chat(self) -> ChatTokenizer:
        """Template and tokenizer of the model; encoding costs nothing."""
        return self._white_box(Needs.TOKENS).chat

    @property
    def num_embeddings(self) -> int:
        """V, the number of rows of the input embedding."""
        return self._white_box(Needs.TOKENS).num_embeddings

    @property
    def context_length(self) -> int:
        """Longest input plus output, in tokens."""
        return self._white_box(Needs.TOKENS).context_length

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """Losses of the targets; every input is one query."""
        model = self._white_box(Needs.LOGITS)
        self._meter.check(self.role, queries=len(inputs))
        found = model.losses(inputs, targets, objective=objective, shared=shared)
        self._book(found.work)
        return found

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
        """Gradient at the slot; one query."""
        model = self._white_box(Needs.GRADIENTS)
        self._meter.check(self.role, queries=1)
        found = model.gradient(
            input_ids,
            slot,
            target,
            objective=objective,
            slot_embeddings=slot_embeddings,
            shared=shared,
        )
        self._book(found.work)
        return found

    def next_logits(self, inputs: Sequence[Sequence[int]], *, shared: int = 0) -> Logits:
        """Logits after each input; every input is one query."""
        model = self._white_box(Needs.LOGITS)
        self._meter.check(self.role, queries=len(inputs))
        found = model.next_logits(inputs, shared=shared)
        self._book(found.work)
        return found

    def decode_together(
        self,
        prompt: Sequence[int],
        count: int,
        length: int,
        choose: Callable[[int, int, torch.Tensor], int],
    ) -> list[tuple[int, ...]]:
        """Continuations that look at each other; each is one query, limits hold between positions.

        Raises:
            BudgetExceededError: a limit ends it between two positions.
        """
        model = self._white_box(Needs.LOGITS)
        if not hasattr(model, "decode_together"):
            raise NeedsError(
                f"model {self._model.name!r} gives logits but decodes no sequences side by side; "
                "use a local model"
            )
        found: list[tuple[int, ...]] = cast("LocalModel", model).decode_together(
            prompt, count, length, choose, account=self._account()
        )
        return found

    def _account(self) -> Account:
        return Account(lambda n: self._meter.check(self.role, queries=n), self._book)

    def soft_losses(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
    ) -> Losses:
        """Losses of inputs given as embedding rows; every input is one query."""
        model = self._white_box(Needs.EMBEDDINGS)
        self._meter.check(self.role, queries=len(inputs))
        found = model.soft_losses(inputs, targets, objective=objective)
        self._book(found.work)
        return found

    def soft_outputs(
        self, rows: torch.Tensor, positions: Sequence[int], *, hidden: bool = False
    ) -> Outputs:
        """Outputs of an input given as embedding rows; one query."""
        model = self._differentiable(hidden)
        self._meter.check(self.role, queries=1)
        found = model.soft_outputs(rows, positions, hidden=hidden)
        self._book(found.work)
        return found

    def soft_gradient(
        self,
        rows: torch.Tensor,
        slot: Sequence[int],
        positions: Sequence[int],
        objective: OutputsObjective,
        *,
        hidden: bool = False,
    ) -> Gradient:
        """Gradient of an objective of the outputs; one query."""
        model = self._differentiable(hidden)
        self._meter.check(self.role, queries=1)
        found = model.soft_gradient(rows, slot, positions, objective, hidden=hidden)
        self._book(found.work)
        return found

    def _differentiable(self, hidden: bool) -> DifferentiableModel:
        model = self._white_box(Needs.GRADIENTS)
        if hidden:
            self._white_box(Needs.HIDDEN)
        if not hasattr(model, "soft_gradient"):
            raise NeedsError(
                f"model {self._model.name!r} gives gradients of target losses only; use a local "
                "model without a defense in front of it"
            )
        return cast("DifferentiableModel", model)

    def refusal_direction(
        self, *groups: Sequence[Conversation], **options: Any
    ) -> RefusalDirection:
        """The direction; its cost is booked as set-up, found now or before.

        Raises:
            BudgetExceededError: a limit ends the search between two of its passes.
        """
        model = cast("LocalModel", self._white_box(Needs.HIDDEN))
        with self._meter.phase("setup"):
            return model.refusal_direction(*groups, account=self._account(), **options)

    def generate_without(
        self,
        direction: torch.Tensor,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
    ) -> list[Reply]:
        """Replies with a direction ablated from the residual stream; booked as others are."""
        model = cast("LocalModel", self._white_box(Needs.HIDDEN))
        self._meter.check(self.role, queries=len(inputs))
        return self._booked(model.generate_without(direction, inputs, generation, rngs))

    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        """Slot gradient times embeddings; part of the gradient that was charged."""
        return self._white_box(Needs.GRADIENTS).token_scores(slot_gradient)

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """Embedding vectors; a look-up, not charged."""
        return self._white_box(Needs.GRADIENTS).embed(ids)

    def embedding_matrix(self) -> torch.Tensor:
        """All embedding vectors; a look-up, not charged."""
        return self._white_box(Needs.GRADIENTS).embedding_matrix()

    def _white_box(self, need: Needs) -> WhiteBoxModel:
        """The model, if it gives `need`."""
        if need not in self._model.gives:
            given = ", ".join(n.name or "" for n in self._model.gives).lower()
            raise NeedsError(
                f"model {self._model.name!r} does not give {str(need.name).lower()}, it gives "
                f"{given}; the attack's INFO.needs must ask for what it uses"
            )
        return cast("WhiteBoxModel", self._model)

    def _book(self, work: Work) -> None:
        self._meter.charge(self.role, work.usage, executed=work.executed)
        if work.shared_key is not None:
            key = f"{self.role}:{self._model.name}:{work.shared_key}"
            if self._pays_for(key):
                self._meter.charge(self.role, work.shared)

    def _pays_for(self, key: str) -> bool:
        """Whether this call is the one that a shared prefix is booked under."""
        if self._meter.current in LIMITED_PHASES:
            return self._meter.first(key)
        return key not in self._meter.once_keys and self._meter.first(f"{key}:beside the search")
