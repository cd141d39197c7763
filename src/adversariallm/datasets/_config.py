"""The options that every dataset understands.

Only declares and validates them; `_select` gives them their meaning, and a dataset's own file adds
what is special to it.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from adversariallm.core.config import FrozenConfig

MAX_POSITIONS = 10_000_000
_RANGE = re.compile(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?,?\s*\)")
_PIECE = re.compile(r"(\d+)(?:-(\d+))?")
IDX_FORMS = "an integer, a list of integers, 'range(a,b)', 'range(a,b,step)' or '0-9,12'"


def parse_positions(value: object) -> tuple[int, ...]:
    """Positions meant by what a user typed; nothing is ever evaluated.

    Args:
        value: an integer, a sequence of integers, or text: `7`, `[1, 2]`, `0-9,12` with both ends
            included, or `range(a,b[,step])`, also inside `list(...)`.

    Raises:
        ValueError: any other form, a boolean, a negative or repeated position, or an empty range.
    """
    positions = _read_positions(value)
    if not positions:
        raise ValueError(f"idx={value!r} selects nothing; expected at least one position")
    if min(positions) < 0:
        raise ValueError(
            f"idx={value!r} holds the negative position {min(positions)}; positions count from 0"
        )
    if len(set(positions)) != len(positions):
        twice = next(p for p in positions if positions.count(p) > 1)
        raise ValueError(f"idx={value!r} holds position {twice} twice; name each position once")
    return positions


def _read_positions(value: object) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, (list, tuple)):
        wrong = [v for v in value if isinstance(v, bool) or not isinstance(v, int)]
        if wrong:
            raise ValueError(f"idx holds {wrong[0]!r}; expected integers")
        return tuple(value)
    if not isinstance(value, str):
        raise ValueError(f"idx={value!r} is {type(value).__name__}; expected {IDX_FORMS}")
    return _read_text(value)


def _read_text(text: str) -> tuple[int, ...]:
    body = text.strip()
    if body.startswith("list(") and body.endswith(")"):
        body = body[len("list(") : -1].strip()
    if match := _RANGE.fullmatch(body):
        bounds = [int(g) for g in match.groups() if g is not None]
        if len(bounds) == 3 and bounds[2] == 0:
            raise ValueError(f"idx={text!r} has a step of 0")
        span = range(*bounds)
    else:
        pieces = [
            _PIECE.fullmatch(p.strip()) for p in body.removeprefix("[").removesuffix("]").split(",")
        ]
        if any(p is None for p in pieces):
            raise ValueError(f"idx={text!r} is not understood; expected {IDX_FORMS}")
        ends = [(int(p[1]), int(p[2] or p[1])) for p in pieces if p is not None]
        if any(last < first for first, last in ends):
            raise ValueError(f"idx={text!r} holds a stretch that runs backwards")
        if sum(last - first + 1 for first, last in ends) <= MAX_POSITIONS:
            return tuple(i for first, last in ends for i in range(first, last + 1))
        span = range(max(last for _, last in ends))
    if len(span) > MAX_POSITIONS:
        raise ValueError(f"idx={text!r} names {len(span)} positions, more than any dataset has")
    return tuple(span)


class DatasetConfig(FrozenConfig):
    """Options common to all datasets; they apply in the order: filter, shuffle, slice."""

    category: tuple[str, ...] | None = Field(None, description="keep these categories, in any case")
    ids: tuple[str, ...] | None = Field(None, description="keep the items with these ids")
    deduplicate: bool = Field(False, description="keep the first of items that ask the very same")
    random_split: Literal["train", "val", "test"] | None = Field(
        None, description="a seeded 60/20/20 split of ours, beside the published ones"
    )
    shuffle: bool = Field(
        True, description="shuffle before slicing; off keeps the order of the file"
    )
    seed: int = Field(0, ge=0, description="seed of the shuffle, of `sample` and of `random_split`")
    order: Literal["stable", "adversariallm"] = Field(
        "stable",
        description="`stable` depends on seed and ids; `adversariallm` replays published idx",
    )
    idx: tuple[int, ...] | None = Field(
        None, description=f"positions after the shuffle: {IDX_FORMS}"
    )
    sample: int | float | None = Field(
        None, description="how many items, or which share of them below 1"
    )
    stratify: bool = Field(False, description="`sample` keeps the proportions of the categories")
    system_prompt: str | None = Field(
        None, description="system message put before every conversation"
    )
    targets: Literal["auto", "dataset", "rule", "none"] = Field(
        "auto", description="`auto` takes shipped targets, else the rule for harmful items"
    )
    targets_file: str | None = Field(
        None, description="JSON object from item id to target; wins over `targets`"
    )

    @field_validator("idx", mode="before")
    @classmethod
    def _positions(cls, value: object) -> tuple[int, ...] | None:
        return None if value is None else parse_positions(value)

    @field_validator("category", "ids", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("sample", "seed", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(f"{value} is a boolean; expected a number")
        return value

    @model_validator(mode="after")
    def _agree(self) -> DatasetConfig:
        if self.sample is not None and self.idx is not None:
            raise ValueError(
                "give idx or sample, not both: each says which items to keep after the shuffle"
            )
        if self.sample is not None and not (
            self.sample >= 1 if isinstance(self.sample, int) else 0 < self.sample <= 1
        ):
            raise ValueError(f"sample={self.sample}: expected a count from 1, or a share in (0, 1]")
        if self.stratify and self.sample is None:
            raise ValueError("stratify=true needs sample=<count or share>")
        return self
