"""Ties to a reference model: what an attack pays where it drives the two models apart.

Source: the AdversariaLLM toolbox (`attacks/pgd.py` at 9fe870b) has them as an option of PGD; ours
are means over the positions that the slot can reach, never over padding or the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import DifferentiableModel, Outputs


@dataclass(frozen=True)
class Tie:
    """The distance between the outputs of two models on one conversation.

    The weighted sum of the mean KL divergence of the attacked model's next-token distribution from
    the reference's, and of the mean of one minus the cosine between their hidden states after every
    layer. Means are over the positions from the slot's first to the last before the answer.

    Attributes:
        problem: the conversation, with the slot.
        reference: the model that the attacked one is tied to.
        logits: weight of the divergence.
        features: weight of the hidden states' distance.
    """

    problem: SlotProblem
    reference: DifferentiableModel
    logits: float = 0.0
    features: float = 0.0

    def __post_init__(self) -> None:
        """Refuse models of different shapes.

        Raises:
            NeedsError: with what differs.
        """
        model = self.problem.model
        for what, one, other in (
            ("embeddings of width", model.embed([0]).shape[1], self.reference.embed([0]).shape[1]),
            ("a vocabulary of", model.num_embeddings, self.reference.num_embeddings),
        ):
            if one != other:
                raise NeedsError(
                    f"reference {self.reference.name!r} has {what} {other}, the attacked model "
                    f"{model.name!r} {one}: ties are for models of one shape, such as a model and "
                    "what it was fine-tuned from"
                )

    @property
    def positions(self) -> Sequence[int]:
        """Positions whose outputs are compared."""
        segments = self.problem.segments
        return range(segments.slot_positions[0], len(segments.input_ids))

    def value(self, vectors: Tensor) -> float:
        """The distance with the slot at `[n, d]` vectors."""
        rows = self.problem.rows_with(vectors)
        ours, theirs = (self._outputs(m, rows) for m in (self._model, self.reference))
        return float(self._distance(ours.logits, ours.hidden, theirs))

    def pull(self, vectors: Tensor) -> tuple[float, Tensor]:
        """The distance, and its `[n, d]` gradient through both models."""
        rows = self.problem.rows_with(vectors)
        slot = self.problem.segments.slot_positions
        theirs = self._outputs(self.reference, rows)
        seen: list[Outputs] = []

        def away(logits: Tensor, hidden: Tensor | None) -> Tensor:
            seen.append(Outputs(logits.detach(), None if hidden is None else hidden.detach()))
            return self._distance(logits, hidden, theirs)

        def back(logits: Tensor, hidden: Tensor | None) -> Tensor:
            fixed = seen[0]
            return self._distance(fixed.logits.to(logits), fixed.hidden, Outputs(logits, hidden))

        found = [
            model.soft_gradient(rows, slot, self.positions, objective, hidden=bool(self.features))
            for model, objective in ((self._model, away), (self.reference, back))
        ]
        return found[0].loss, found[0].slot.float().cpu() + found[1].slot.float().cpu()

    @property
    def _model(self) -> DifferentiableModel:
        return cast("DifferentiableModel", self.problem.model)

    def _outputs(self, model: DifferentiableModel, rows: Tensor) -> Outputs:
        return model.soft_outputs(rows, self.positions, hidden=bool(self.features))

    def _distance(self, logits: Tensor, hidden: Tensor | None, other: Outputs) -> Tensor:
        """Distance of a model's outputs from the reference's."""
        total = logits.new_zeros(())
        if self.logits:
            ours, theirs = logits.log_softmax(-1), other.logits.to(logits).log_softmax(-1)
            total = total + self.logits * (theirs.exp() * (theirs - ours)).sum(-1).mean()
        if self.features and hidden is not None and other.hidden is not None:
            if hidden.shape != other.hidden.shape:
                raise NeedsError(
                    f"reference {self.reference.name!r} has hidden states of shape "
                    f"{tuple(other.hidden.shape)}, the attacked model {tuple(hidden.shape)}"
                )
            apart = 1 - torch.cosine_similarity(hidden, other.hidden.to(hidden), dim=-1)
            total = total + self.features * apart.mean()
        return total
