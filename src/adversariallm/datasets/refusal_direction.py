"""Harmful and harmless instructions from which a refusal direction is computed.

The published splits of Arditi et al.; `models.directions` computes the direction.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_records, text_ids

_PARTS = tuple(f"{k}_{s}" for k in ("harmful", "harmless") for s in ("train", "val", "test"))
INFO = DatasetInfo(
    name="refusal_direction",
    summary="harmful (260, 39, 572) and harmless (18793, 6264, 6266) instructions",
    source="Arditi et al. 2024, arXiv 2406.11717; github andyrdt/refusal_direction",
    licence="Apache-2.0; contents MIT and CC-BY-NC-4.0",
    purpose="direction",
    harmful=None,
    size=32194,
    splits=("train", "val", "test"),
    assets=tuple(f"refusal_direction/{p}" for p in _PARTS),
    sha256="8f5c0eac0efd2a7f99084bbe8d0de2c465e31b1997184783c917969d9de9ece1",
    notes=(
        "harmful_test holds 562 distinct texts; ten occur twice",
        "exact texts recur across the benchmarks that it mixes, so it overlaps with them",
        "category is empty for harmful_train and for all harmless items",
    ),
)


class Config(FileConfig):
    """Options of `refusal_direction`."""

    type: Literal["harmful", "harmless"] = Field("harmful", description="which kind of instruction")
    split: Literal["train", "val", "test"] = Field("train", description="as published")


def load(config: Config) -> Dataset:
    """The selected instructions."""
    asset = f"refusal_direction/{config.type}_{config.split}"
    file = get_files(config, asset)[asset]
    rows = read_records(file, ("instruction", "category"))
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(row["instruction"]),
            goal=row["instruction"],
            harmful=config.type == "harmful",
            category=row["category"],
            subcategory=config.type,
            split=config.split,
            source=file.source or "refusal_direction",
            extra={"index": index},
        )
        for index, (name, row) in enumerate(
            zip(text_ids([r["instruction"] for r in rows]), rows, strict=True)
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})
