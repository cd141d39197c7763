"""AdvBench: short harmful instructions, each with an answer prefix.

Many goals are near copies of each other; `split=subset_50` has the fifty that PAIR picked. The
harmful strings are not read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv, text_ids

INFO = DatasetInfo(
    name="advbench",
    summary="short harmful instructions with answer prefixes",
    source="Zou et al. 2023, arXiv 2307.15043; github llm-attacks/llm-attacks",
    licence="MIT",
    purpose="harmfulness",
    harmful=True,
    size=520,
    splits=("all", "subset_50"),
    assets=("advbench/harmful_behaviors", "advbench/subset_50"),
    sha256="6cd1a5c63c07610d7eb67307772ee5606017ee950b5770ab288a2c487489d3e1",
    targets=True,
    notes=("many near-duplicate goals; 16 targets occur twice", "only subset_50 has categories"),
)
ASSETS = {"all": "advbench/harmful_behaviors", "subset_50": "advbench/subset_50"}


class Config(FileConfig):
    """Options of `advbench`."""

    split: Literal["all", "subset_50"] = Field(
        "all", description="subset_50 avoids near-duplicates"
    )


def load(config: Config) -> Dataset:
    """The selected instructions."""
    asset = ASSETS[config.split]
    file = get_files(config, asset)[asset]
    rows = read_csv(file, ("goal", "target"))
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(row["goal"]),
            goal=row["goal"],
            harmful=True,
            target=row["target"],
            category=row.get("category"),
            split=config.split,
            source=file.source or "advbench",
            extra={"index": index},
        )
        for index, (name, row) in enumerate(
            zip(text_ids([r["goal"] for r in rows]), rows, strict=True)
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})
