"""OR-Bench: benign prompts that models tend to refuse, and toxic ones beside them.

The category names the superficial topic. Almost all hard prompts are also in the 80k
file, so the counts must not be added.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv, text_ids

INFO = DatasetInfo(
    name="or_bench",
    summary="benign prompts that are often refused (hard, 80k), and toxic ones",
    source="Cui et al. 2024, arXiv 2405.20947; hub bench-llm/or-bench",
    licence="CC-BY-4.0",
    purpose="over_refusal",
    harmful=None,
    size=1319,
    categories={
        "illegal": 527,
        "privacy": 199,
        "unethical": 125,
        "harmful": 106,
        "deception": 72,
        "sexual": 66,
        "violence": 66,
        "self-harm": 63,
        "hate": 54,
        "harassment": 41,
    },
    splits=("hard", "toxic", "80k"),
    assets=("or_bench/hard", "or_bench/toxic", "or_bench/80k"),
    sha256="a6e2f1166416efe5901f3bb05c47dc92ab3aca3acfe143693d38b8057d841e6d",
    notes=(
        "hard has 1319 prompts, not 1000; size and categories are those of hard",
        "hard and toxic have different proportions of categories: stratify to compare",
        "the pin of 80k is unverified: its hash is recorded at the first download",
    ),
)


class Config(FileConfig):
    """Options of `or_bench`."""

    split: Literal["hard", "toxic", "80k"] = Field("hard", description="toxic prompts are harmful")


def load(config: Config) -> Dataset:
    """The selected prompts."""
    asset = f"or_bench/{config.split}"
    file = get_files(config, asset)[asset]
    rows = read_csv(file, ("prompt", "category"))
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(row["prompt"]),
            goal=row["prompt"],
            harmful=config.split == "toxic",
            category=row["category"],
            split=config.split,
            source=file.source or "or-bench",
            extra={"index": index},
        )
        for index, (name, row) in enumerate(
            zip(text_ids([r["prompt"] for r in rows]), rows, strict=True)
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})
