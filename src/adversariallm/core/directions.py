"""How a refusal direction is asked for: the instruction sets, the options, the limits.

Whoever uses a direction shares these; the search itself is `models.directions`.
Source: Arditi et al. 2024, arXiv 2406.11717, section 2.3 and appendix C; the numbers are the
defaults of the authors' code (andyrdt/refusal_direction).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import Direction, SteerableModel, Work
from adversariallm.core.types import Conversation

SETS = tuple(
    f"refusal_direction/{kind}_{split}"
    for split in ("train", "val")
    for kind in ("harmful", "harmless")
)
"""Assets with the authors' instructions, in the order in which a search takes them."""


@dataclass(frozen=True)
class Thresholds:
    """What a direction must satisfy to be chosen.

    Attributes:
        max_divergence: largest mean KL (nats) of next-token distributions on harmless prompts,
            ablated.
        min_induced: smallest mean refusal score that adding it to harmless prompts gives.
        last_layers: share of the last layers that is not considered.
    """

    max_divergence: float = 0.1
    min_induced: float = 0.0
    last_layers: float = 0.2


@dataclass(frozen=True)
class Account:
    """Who pays for a search, so that a limit ends it between two passes.

    Attributes:
        ask: called with the number of queries before each pass; raises where a limit is reached.
        book: called with what each pass cost.
    """

    ask: Callable[[int], None]
    book: Callable[[Work], None]


class DirectionConfig(FrozenConfig):
    """Options of finding a direction; the defaults are those of its authors."""

    num_train: int = Field(128, ge=1, description="instructions of each kind to take means over")
    num_validation: int = Field(32, ge=1, description="instructions of each kind to choose with")
    refusal_tokens: tuple[str, ...] = Field(
        ("I",), min_length=1, description="texts whose first tokens begin a refusal of this model"
    )
    max_divergence: float = Field(
        Thresholds.max_divergence,
        ge=0,
        allow_inf_nan=False,
        description="a direction is not chosen if ablating it moves the next token of harmless "
        "prompts by more (mean KL, nats)",
    )
    min_induced: float = Field(
        Thresholds.min_induced,
        allow_inf_nan=False,
        description="a direction is not chosen if adding it to harmless prompts gives refusals "
        "smaller mean log-odds",
    )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Instructions of each group: as `SETS`."""
        return (self.num_train, self.num_train, self.num_validation, self.num_validation)

    def published(self, assets: Mapping[str, str]) -> list[Sequence[Conversation]]:
        """As many of the authors' instructions as are asked for, in the order of `SETS`."""
        return [
            [Conversation.user(row["instruction"]) for row in json.loads(assets[name])[:size]]
            for name, size in zip(SETS, self.sizes, strict=True)
        ]

    def direction(
        self, model: SteerableModel, groups: Sequence[Sequence[Conversation]]
    ) -> Direction:
        """The direction of `model` found from four groups, in the order of `SETS`.

        Raises:
            ModelError: the model shows no refusal, or no direction is within the limits.
        """
        return model.refusal_direction(
            *groups,
            refusal_tokens=self.refusal_tokens,
            thresholds=Thresholds(self.max_divergence, self.min_induced),
        )
