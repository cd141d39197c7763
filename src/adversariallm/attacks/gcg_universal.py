"""Universal GCG: one suffix for several behaviors and models, added one after the other.

Source: Zou et al. 2023 (arXiv 2307.15043), Algorithm 2: gradients and losses are summed over the
behaviors and models that are active; the next behavior (then the next model) joins once the suffix
makes every active one start with its target. Held-out behaviors get the same suffix text, and
success on them is reported beside the others. Algorithm 2 has one model; that a model which joins
starts with the first behavior again is our rule.

Deviations from the reference code: success means that every target token is the greedy choice, not
that a list of refusal phrases is absent; a candidate must be reachable in every active
conversation; models of one run share their tokenizer; losses are float32 and summed, each
behavior's gradient scaled to unit norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from adversariallm.attacks._kit import proposals
from adversariallm.attacks._kit.ranking import lowest, nan_flags
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Candidate, ModelInput, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="gcg_universal",
    summary="one GCG suffix for several behaviors and models",
    source="Zou et al. 2023, arXiv 2307.15043, Algorithm 2",
    reference_code="llm-attacks/llm-attacks",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS,
    modality="suffix",
    version=2,
    fits="many",
    target="required",
    deviations=(
        "a behavior counts as solved when every target token is the greedy choice",
        "models of one run share their tokenizer",
        "a model that joins starts with the first behavior again",
    ),
    quick={"num_steps": 3, "search_width": 12, "topk": 32, "initial": "! ! ! !"},
)
RESAMPLES = 4


class Config(FrozenConfig):
    """Options; defaults are those of llm-attacks."""

    num_steps: int = Field(
        500, ge=0, description="optimization steps", json_schema_extra={"extends": True}
    )
    search_width: int = Field(512, ge=1, description="candidates per step")
    topk: int = Field(256, ge=1, description="tokens kept per position by gradient")
    initial: str = Field(
        "! " * 19 + "!", min_length=1, description="text of the suffix at the start"
    )
    join: Literal["none", "space"] = Field("space", description="between prompt and suffix")
    progressive: bool = Field(True, description="start with one behavior and add the others")
    progressive_models: bool = Field(True, description="start with one model and add the others")
    allow_non_ascii: bool = Field(False, description="also use tokens that are not printable ASCII")


@dataclass
class _Front:
    """The suffix, how many behaviors and models are active, and the suffix's losses on those.

    No losses: the suffix was never scored on what is active now, or a loss was no number.
    """

    slot: Tensor
    behaviors: int
    models: int
    losses: list[float]
    matched: bool = False

    def state(self) -> State:
        return State({**vars(self), "slot": self.slot.tolist()})


class Attack:
    """One suffix against many."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the start, then the suffix after each step, placed in every evaluated behavior."""
        c = self.config
        grid = self._grid(task, ctx)
        if ctx.state is None:
            front = _Front(
                grid[0][0].start,
                1 if c.progressive else len(task.behaviors),
                1 if c.progressive_models else len(ctx.models),
                [],
            )
            flags = self._score(grid, front, front.slot.unsqueeze(0))
            yield self._candidate(task, ctx, front, {}, flags)
            first = 1
        else:
            values = dict(ctx.state.values)
            front = _Front(torch.tensor(values.pop("slot")), **values)
            first = ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            self._advance_front(grid, front)
            note, flags = self._step(grid, front, ctx.rng.child("step", step))
            yield self._candidate(task, ctx, front, note, flags)

    def _grid(self, task: Task, ctx: Context) -> list[list[SlotProblem]]:
        """Problems by model and behavior; all share the ids of the initial suffix."""
        c = self.config
        tokenizers = {m.chat.codec.content_hash for m in ctx.models}
        if len(tokenizers) > 1:
            raise NeedsError(
                f"gcg_universal got models with {len(tokenizers)} different tokenizers; "
                "attack them in separate runs, or transfer the suffix with `transfer`"
            )
        grid = [
            [
                SlotProblem.build(
                    m, b, Slot("suffix", c.initial, c.join), allow_non_ascii=c.allow_non_ascii
                )
                for b in task.behaviors
            ]
            for m in ctx.models
        ]
        starts = {tuple(p.segments.slot_ids) for row in grid for p in row}
        if len(starts) > 1:
            raise NeedsError(
                f"the initial suffix {c.initial!r} is tokenized in {len(starts)} ways behind these "
                "behaviors; use join=space or another initial text"
            )
        return grid

    @staticmethod
    def _active(grid: list[list[SlotProblem]], front: _Front) -> list[SlotProblem]:
        return [p for row in grid[: front.models] for p in row[: front.behaviors]]

    def _advance_front(self, grid: list[list[SlotProblem]], front: _Front) -> None:
        """Let the next behavior, or else the next model, join once all active ones are solved."""
        if not front.matched:
            return
        if front.behaviors < len(grid[0]):
            front.behaviors += 1
        elif front.models < len(grid):
            front.models += 1
            if self.config.progressive:
                front.behaviors = 1
        else:
            return
        front.losses, front.matched = [], False  # of the new set nothing is known yet

    @staticmethod
    def _allowed(grid: list[list[SlotProblem]]) -> Tensor:
        """`[V]` bool, ids that every model of the run allows; V is the smallest embedding's."""
        masks = [row[0].allowed for row in grid]
        size = min(map(len, masks))
        return torch.stack([mask[:size] for mask in masks]).all(0)

    def _step(
        self, grid: list[list[SlotProblem]], front: _Front, rng: Rng
    ) -> tuple[dict[str, object], tuple[str, ...]]:
        active, allowed = self._active(grid, front), self._allowed(grid)
        scores, flags = self._token_scores(active, front.slot, len(allowed))
        for attempt in range(RESAMPLES):
            rows = proposals.propose(
                front.slot,
                scores,
                allowed,
                rng.child("propose", attempt),
                width=self.config.search_width,
                topk=self.config.topk,
                positions="even",
            )
            sampled = len(rows)
            for problem in active:
                rows = problem.reachable(rows)[0]
            if len(rows):
                flags += self._score(grid, front, rows)
                return {"sampled": sampled, "kept": len(rows), "resampled": attempt}, flags
        return {"sampled": sampled, "kept": 0, "resampled": RESAMPLES}, (
            *flags,
            "no_reachable_candidate",
        )

    @staticmethod
    def _token_scores(
        active: list[SlotProblem], slot: Tensor, size: int
    ) -> tuple[Tensor | None, tuple[str, ...]]:
        """`[n, size]` sum of the active problems' token gradients, each of unit norm."""
        total: Tensor | None = None
        for problem in active:
            gradient, finite = problem.token_gradient(slot)
            if not finite:
                return None, ("gradient_not_finite",)
            gradient = gradient[:, :size]
            norm = gradient.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
            total = gradient / norm if total is None else total + gradient / norm
        return total, ()

    def _score(self, grid: list[list[SlotProblem]], front: _Front, rows: Tensor) -> tuple[str, ...]:
        """Move to the row with the lowest summed loss over the active problems; the step's flags.

        Where no sum is a number the suffix stays.
        """
        found = [problem.losses(rows) for problem in self._active(grid, front)]
        total = torch.stack([f.loss for f in found]).sum(0)
        winner = lowest(total)
        if winner is not None:
            front.slot = rows[winner]
            front.losses = [float(f.loss[winner]) for f in found]
            front.matched = all(bool(f.matches[winner]) for f in found)
        return nan_flags(total)

    def _candidate(
        self,
        task: Task,
        ctx: Context,
        front: _Front,
        note: dict[str, object],
        flags: tuple[str, ...],
    ) -> Candidate:
        """The suffix text in every evaluated behavior; losses where the search computed them."""
        active = [
            (m, b.key) for m in range(front.models) for b in task.behaviors[: front.behaviors]
        ]
        known = dict(zip(active, front.losses, strict=True)) if front.losses else {}
        inputs, losses = [], []
        for m, model in enumerate(ctx.models):
            for behavior in task.evaluated:
                slot = Slot("suffix", self.config.initial, self.config.join)
                segments = model.chat.segments(behavior.conversation, slot)
                placed = model.chat.canonicalize(segments, front.slot.tolist())
                inputs.append(ModelInput.from_segments(placed))
                losses.append(known.get((m, behavior.key)))
        note = {
            **note,
            "active_behaviors": front.behaviors,
            "active_models": front.models,
            "solved": front.matched,
        }
        return Candidate(tuple(inputs), tuple(losses), state=front.state(), note=note, flags=flags)
