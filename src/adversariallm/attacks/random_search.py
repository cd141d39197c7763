"""Random search over suffix tokens: the control that every gradient attack has to beat.

Source: the baseline of the AdversariaLLM toolbox paper; the idea is in Zou et al. 2023 (arXiv
2307.15043) and Andriushchenko et al. 2024 (arXiv 2404.02151), whose stronger variant (blocks of
tokens, self-transfer, a prompt template) is a different algorithm.

Deviations from the reference code: the start is scored as step 0, only reachable text is proposed,
and exactly up to `radius` positions change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field

from adversariallm.attacks._kit.proposals import replace_uniformly, uniform_positions
from adversariallm.attacks._kit.ranking import lowest, nan_flags
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.types import Candidate, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="random_search",
    summary="uniform single-token changes, the best is kept if it lowers the loss",
    source="AdversariaLLM toolbox; idea in arXiv 2307.15043 and 2404.02151",
    reference_code="LLM-QC/AdversariaLLM@9fe870b",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS,
    modality="suffix",
    target="required",
    quick={"num_steps": 4, "num_candidates": 6, "radius": 2, "initial": "x x x x"},
    deviations=(
        "step 0 is scored; the reference accepts the first candidate even if it is worse",
        "candidates are filtered by whole-conversation reachability",
    ),
)


class Config(FrozenConfig):
    """Options; defaults are those of the toolbox paper."""

    num_steps: int = Field(
        100, ge=0, description="optimization steps", json_schema_extra={"extends": True}
    )
    num_candidates: int = Field(8, ge=1, description="neighbors tried per step")
    radius: int = Field(1, ge=1, description="at most so many positions change")
    initial: str = Field("x " * 19 + "x", min_length=1, description="text of the slot at the start")
    placement: Literal["suffix", "prefix", "both", "turn"] = Field(
        "suffix", description="where the slot is"
    )
    join: Literal["none", "space"] = Field("space", description="between prompt and slot")
    allow_non_ascii: bool = Field(False, description="also use tokens that are not printable ASCII")


class Attack:
    """Greedy random local search."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the start, then the best slot after each step."""
        c = self.config
        problem = SlotProblem.build(
            ctx.model,
            task.behavior,
            Slot(c.placement, c.initial, c.join),
            allow_non_ascii=c.allow_non_ascii,
        )
        if ctx.state is None:
            best, loss = problem.start, float(problem.losses([problem.start.tolist()]).loss[0])
            yield self._candidate(problem, best, loss)
        else:
            best = torch.tensor(ctx.state.values["slot"])
            loss = ctx.state.values["loss"]
        first = 1 if ctx.state is None else ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            candidates, counts = problem.reachable(self._neighbors(problem, best, ctx, step))
            flags: tuple[str, ...] = ()
            accepted = False
            if len(candidates):
                losses = problem.losses(candidates).loss
                winner = lowest(losses)
                if winner is not None and not loss <= float(losses[winner]):  # also a NaN start
                    best, loss, accepted = candidates[winner], float(losses[winner]), True
                flags = nan_flags(losses)
            else:
                flags = ("no_reachable_candidate",)
            note = {**counts, "accepted": accepted}
            yield self._candidate(problem, best, loss, note, flags)

    def _neighbors(
        self, problem: SlotProblem, slot: torch.Tensor, ctx: Context, step: int
    ) -> torch.Tensor:
        """`[W, n]` neighbors, each with 1 to `radius` positions redrawn."""
        c = self.config
        rng = ctx.rng.child("neighbors", step)
        radius = min(c.radius, len(slot))
        positions = uniform_positions(
            len(slot), c.num_candidates, radius, rng.child("positions").torch()
        )
        changed = replace_uniformly(
            slot, positions, problem.allowed_ids, rng.child("token_choice").torch()
        )
        sizes = torch.randint(
            1, radius + 1, (c.num_candidates, 1), generator=rng.child("sizes").torch()
        )
        late = torch.arange(radius).expand(c.num_candidates, -1) >= sizes
        return changed.scatter(
            1, positions, torch.where(late, slot[positions], changed.gather(1, positions))
        )

    @staticmethod
    def _candidate(
        problem: SlotProblem,
        slot: torch.Tensor,
        loss: float,
        note: Mapping[str, object] | None = None,
        flags: tuple[str, ...] = (),
    ) -> Candidate:
        state = State({"slot": slot.tolist(), "loss": loss})
        return Candidate.of(problem.at(slot), loss, state=state, note=note or {}, flags=flags)
