"""Steering towards refusal: the model's own refusal direction is added to its residual stream.

Source: Arditi et al. 2024, arXiv 2406.11717, section 2.3: the difference of means is found as
there, and added to the stream before the layer it was read at, at every position.
Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

from pydantic import Field

from adversariallm.core.directions import SETS, DirectionConfig
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import (
    ChatModel,
    DefenseInfo,
    Direction,
    Needs,
    SteerableModel,
    Supplies,
    Wanted,
)
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply
from adversariallm.defenses._kit.defended import Defended, check_model

INFO = DefenseInfo(
    name="refusal_direction",
    summary="the model's refusal direction is added to its residual stream",
    source="Arditi et al. 2024, arXiv 2406.11717, section 2.3",
    reference_code=None,
    version=2,
    passes=Needs.white_box() & ~Needs.HIDDEN,
    deviations=(
        "the paper adds the direction to study refusal; as a defense it has a strength, since at "
        "full strength harmless requests are refused too",
    ),
    quick={"data": "starter", "num_train": 8, "num_validation": 2},
)


class Config(DirectionConfig):
    """Options; those of the direction are the defaults of its authors."""

    strength: float = Field(0.5, gt=0, le=10, description="times the difference of means")
    data: Literal["refusal_direction", "starter"] = Field(
        "refusal_direction",
        description="instructions that the direction is found from: the authors', or our starter "
        "sets, which should then not be evaluated on",
    )

    def wanted(self) -> Wanted:
        """The residual stream, and instructions."""
        need = Needs.HIDDEN
        if self.data == "starter":
            sets: dict[str, dict[str, object]] = {"starter_harmful": {}, "starter_benign": {}}
            return Wanted(model=need, inside=need, datasets=sets)
        return Wanted(model=need, inside=need, assets=SETS)


class Steered(Defended):
    """The model with the direction in its stream: text, ids, losses and gradients alike."""

    config: Config

    def __init__(self, model: SteerableModel, config: Config, direction: Direction) -> None:
        """Add `direction`, which was found before."""
        super().__init__(model, INFO, config, preparation=direction.work.usage)
        self._steerable = model
        self._direction = direction

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One reply per input, from the steered model, which reads exact ids as they are."""
        with self.around():
            return self._steerable.generate(inputs, generation, rngs, json_schema=json_schema)

    def around(self) -> AbstractContextManager[None]:
        """The direction in the stream."""
        return self._steerable.steering(self._direction, self.config.strength)


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The steered model; the direction is found once for equal options.

    Raises:
        ModelError: the model shows no refusal, or no direction is admissible.
    """
    check_model(model, INFO, config)
    steerable = cast("SteerableModel", model)
    direction = config.direction(steerable, _instructions(config, supplies))
    return Steered(steerable, config, direction)


def _instructions(config: Config, supplies: Supplies) -> list[Sequence[Conversation]]:
    """Harmful and harmless to take means over, then harmful and harmless to choose with."""
    if config.data == "refusal_direction":
        return config.published(supplies.assets)
    kinds = [[b.conversation for b in supplies.datasets[name]]
             for name in ("starter_harmful", "starter_benign")]  # fmt: skip
    halves = [kind[part::2] for part in (0, 1) for kind in kinds]
    return [part[:size] for part, size in zip(halves, config.sizes, strict=True)]
