"""A behavior turned into a discrete problem: which ids may change, what they cost, which are text.

Used by every attack that edits tokens; it proposes nothing and keeps no state of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import Gradient, Losses, Objective, WhiteBoxModel
from adversariallm.core.types import Behavior, ModelInput, Segments
from adversariallm.tokenization import ReachabilityFilter, Slot

Filter = Literal["conversation", "isolated", "none"]


@dataclass(frozen=True)
class SlotProblem:
    """One behavior on one model, with a slot and a target.

    Attributes:
        model: the model under attack.
        segments: the conversation with the initial slot.
        allowed: `[V]` bool, ids an attack may use.
        filter: which candidates count as text: those that survive tokenizing the whole
            conversation, those that survive decoding and encoding alone, or all.
    """

    model: WhiteBoxModel
    segments: Segments
    allowed: Tensor
    filter: Filter = "conversation"

    @classmethod
    def build(
        cls,
        model: WhiteBoxModel,
        behavior: Behavior,
        slot: Slot,
        *,
        allow_non_ascii: bool = False,
        filter: Filter = "conversation",
    ) -> SlotProblem:
        """Tokenize the behavior with its slot and target.

        Raises:
            NeedsError: the target gives no token, or the slot has a text that gives none.
        """
        segments = model.chat.segments(behavior.conversation, slot, target=behavior.target)
        if slot.text and not segments.slot_ids:
            raise NeedsError(
                f"behavior {behavior.id!r}: the initial slot {slot.text!r} gives no token of its "
                "own; give a longer initial text"
            )
        if not segments.target_ids:
            raise NeedsError(f"behavior {behavior.id!r}: the target gives no token")
        allowed = model.chat.mask(model.num_embeddings, ascii_only=not allow_non_ascii)
        if not bool(allowed.any()):
            raise NeedsError("no token of this tokenizer is allowed; set allow_non_ascii=true")
        return cls(model, segments, allowed, filter)

    @property
    def start(self) -> Tensor:
        """`[n]` ids of the initial slot."""
        return torch.tensor(self.segments.slot_ids)

    @property
    def target(self) -> tuple[int, ...]:
        """Ids of the target."""
        return self.segments.target_ids

    @cached_property
    def allowed_ids(self) -> Tensor:
        """Ids an attack may use, ascending."""
        return self.allowed.nonzero().squeeze(1)

    def losses(
        self,
        candidates: Sequence[Sequence[int]] | Tensor,
        objective: Objective | None = None,
        *,
        length: int | None = None,
    ) -> Losses:
        """Losses of candidate slots, on the first `length` target ids."""
        rows = candidates.tolist() if isinstance(candidates, Tensor) else candidates
        inputs = [self.segments.input_with(row) for row in rows]
        targets = [self.target[:length]] * len(inputs)
        shared = len(self.segments.before)
        return self.model.losses(inputs, targets, objective=objective, shared=shared)

    def gradient(
        self, slot: Tensor, objective: Objective | None = None, *, length: int | None = None
    ) -> Gradient:
        """Gradient with respect to the slot's embedding vectors."""
        return self.model.gradient(
            self.segments.input_with(slot.tolist()),
            self.segments.slot_positions,
            self.target[:length],
            objective=objective,
            shared=len(self.segments.before),
        )

    def token_gradient(
        self, slot: Tensor, objective: Objective | None = None, *, length: int | None = None
    ) -> tuple[Tensor, bool]:
        """`[n, V]` gradient with respect to the one-hot rows, and whether it is finite."""
        gradient = self.gradient(slot, objective, length=length)
        return self.token_scores(gradient.slot), gradient.finite

    def token_scores(self, slot_gradient: Tensor) -> Tensor:
        """`[n, V]` float32 gradient with respect to the one-hot rows.

        It is on the CPU, as the mask and all proposals are, wherever the model is.
        """
        return self.model.token_scores(slot_gradient).float().cpu()

    def rows_with(self, vectors: Tensor) -> Tensor:
        """`[P, d]` float32 embedding rows of the input, the slot's replaced by `vectors`."""
        rows = self.model.embed(self.segments.input_ids).float().cpu().clone()
        rows[list(self.segments.slot_positions)] = vectors
        return rows

    @cached_property
    def _reachability(self) -> ReachabilityFilter:
        return self.model.chat.reachability(self.segments)

    def reachable(self, candidates: Tensor) -> tuple[Tensor, dict[str, int]]:
        """The candidates that text can produce, and counts for the record."""
        counts = {"sampled": len(candidates), "kept": len(candidates)}
        if self.filter == "none" or not len(candidates):
            return candidates, counts
        if self.filter == "isolated":
            kept = self._survives_alone(candidates)
            return candidates[kept], {**counts, "kept": int(kept.sum())}
        verdict = self._reachability(candidates)
        stats = verdict.stats
        counts |= {
            "kept": stats.kept,
            "rejected_isolated": stats.rejected_isolated,
            "rejected_conversation": stats.rejected_conversation,
        }
        return candidates[verdict.mask()], counts

    def _survives_alone(self, candidates: Tensor) -> Tensor:
        """Whether each candidate survives decoding and encoding without its context."""
        codec = self.model.chat.codec
        rows = candidates.tolist()
        encoded = codec.encode_batch(codec.decode_batch(rows))
        return torch.tensor([list(a) == b for a, b in zip(encoded, rows, strict=True)])

    def moved(self, slot: Sequence[int]) -> SlotProblem:
        """The same problem with the slot at other, reachable ids; the slot may have grown."""
        return replace(self, segments=self.model.chat.with_slot(self.segments, slot))

    def at(self, slot: Tensor) -> ModelInput:
        """What is sent for these slot ids."""
        ids = slot.tolist()
        text = self.model.chat.canonicalize(self.segments, ids)
        return ModelInput(text.conversation, self.segments.input_with(ids), prefill=text.prefill)
