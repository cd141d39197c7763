"""GCG towards what the model would say without its refusal direction.

Source: Arditi et al. 2024 (arXiv 2406.11717) for the direction, the AdversariaLLM toolbox for the
combination: the difference-of-means direction is found and ablated, the ablated model's greedy
answer becomes the target, and GCG optimizes a suffix for it on the model as it is.

Deviations from the reference code: GCG is the attack `gcg` itself, not a second copy; finding the
direction is booked as set-up, generating the target as optimization; a target that is empty or
still a refusal gives way to the dataset's, and the step is flagged; a partial last word is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pydantic import Field

from adversariallm.core.directions import SETS, DirectionConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import AttackInfo, Context, Needs, SteerableModel
from adversariallm.core.types import Behavior, Candidate, State, Task

GCG = ATTACKS.load("gcg")
if TYPE_CHECKING:
    from adversariallm.attacks.gcg import Config as GcgConfig
else:
    GcgConfig = GCG.Config

INFO = AttackInfo(
    name="gcg_refusal",
    summary="GCG on the answer that the refusal-ablated model gives",
    version=1 + GCG.INFO.version,  # a change of gcg is a change of this attack
    source="Arditi et al. 2024, arXiv 2406.11717; AdversariaLLM toolbox",
    reference_code="andyrdt/refusal_direction; LLM-QC/AdversariaLLM@9fe870b",
    needs=Needs.white_box(),
    modality="suffix",
    target="optional",
    assets=SETS,
    deviations=("a target that still refuses gives way to the dataset's",),
    quick={
        "gcg": {"num_steps": 2, "search_width": 6, "topk": 16, "initial": "! ! !"},
        "num_train": 2,
        "num_validation": 2,
        "max_target_tokens": 6,
    },
)


class Config(DirectionConfig):
    """Options; those of the direction are the defaults of the direction's authors."""

    gcg: GcgConfig = Field(GcgConfig(), description="options of the attack gcg")
    refusal_openings: tuple[str, ...] = Field(
        ("I can't", "I cannot", "I'm sorry", "Sorry", "I won't"),
        description="a generated target that begins so is a refusal",
    )
    max_target_tokens: int = Field(64, ge=1, description="length of the generated target")


class Attack:
    """A target from the ablated model, then GCG."""

    def __init__(self, config: Config) -> None:
        """Keep the options and prepare GCG."""
        self.config = config
        self.gcg = GCG.Attack(config.gcg)

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield what GCG yields for the new target."""
        behavior = task.behavior
        inner = ctx
        if ctx.state is None:
            target, flags = self._target(behavior, ctx)
        else:
            target, flags = ctx.state.values["target"], tuple(ctx.state.values["flags"])
            inner = replace(ctx, state=replace(ctx.state, values=ctx.state.values["gcg"]))
        aimed = replace(behavior, target=target, target_source="rule:refusal_ablated")
        for candidate in self.gcg.search(Task((aimed,)), inner):
            values = {"target": target, "flags": list(flags), "gcg": dict(candidate.state.values)}
            yield replace(
                candidate,
                state=State(values, candidate.state.tensors),
                note={**candidate.note, "target": target},
                flags=(*candidate.flags, *flags),
            )

    def _target(self, behavior: Behavior, ctx: Context) -> tuple[str, tuple[str, ...]]:
        """The ablated model's answer, or the dataset's target where that is no use."""
        c = self.config
        model = cast("SteerableModel", ctx.model)
        direction = c.direction(model, c.published(ctx.assets))
        generation = GenerationConfig(max_new_tokens=c.max_target_tokens)
        rng = ctx.rng.child("target")
        (reply,) = model.generate_without(
            direction.vector, [behavior.conversation], generation, [rng]
        )
        text = reply.text
        if reply.finish_reason == "length" and " " in text.strip():
            text = text.rsplit(" ", 1)[0]  # the last word may be cut off
        if text.strip() and not text.strip().startswith(c.refusal_openings):
            return text, ()
        if not behavior.target:
            raise NeedsError(
                f"behavior {behavior.id!r}: the ablated model said {text[:80]!r}, which is no "
                "target, and the dataset has none; use a dataset with targets"
            )
        return behavior.target, ("ablated_target_refused",)


EXAMPLE_ASSETS = {
    name: json.dumps([{"instruction": f"{name} {k}"} for k in range(2)]) for name in SETS
}
