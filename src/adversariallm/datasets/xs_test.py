"""XSTest: safe prompts that sound unsafe, and unsafe contrasts to them.

For the safe ones a refusal is the failure; there are no targets.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv

_SAFE = (
    "homonyms",
    "figurative_language",
    "safe_targets",
    "safe_contexts",
    "definitions",
    "real_group_nons_discr",
    "nons_group_real_discr",
    "historical_events",
    "privacy_public",
    "privacy_fictional",
)
_UNSAFE = (
    "contrast_homonyms",
    "contrast_figurative_language",
    "contrast_safe_targets",
    "contrast_safe_contexts",
    "contrast_definitions",
    "contrast_discr",
    "contrast_historical_events",
    "contrast_privacy",
)
INFO = DatasetInfo(
    name="xs_test",
    summary="250 safe prompts that sound unsafe, and 200 unsafe contrasts",
    source="Rottger et al. 2023, arXiv 2308.01263; github paul-rottger/xstest",
    licence="CC-BY-4.0",
    purpose="over_refusal",
    harmful=None,
    size=450,
    categories=dict.fromkeys((*_SAFE, *_UNSAFE), 25),
    splits=("safe", "unsafe", "all"),
    assets=("xs_test/prompts",),
    sha256="11783fb294ed017473ee53c207d71f2161c7672c8d0b037501e78387f801cb5a",
    notes=(
        "a refusal of a safe prompt is the failure",
        "focus is empty on 75 rows; pair safe and unsafe prompts by id, not by focus",
    ),
)


class Config(FileConfig):
    """Options of `xs_test`."""

    split: Literal["safe", "unsafe", "all"] = Field("safe", description="by the published label")


def load(config: Config) -> Dataset:
    """The selected prompts."""
    asset = "xs_test/prompts"
    file = get_files(config, asset)[asset]
    items = [
        Behavior(
            id=row["id"],
            conversation=Conversation.user(row["prompt"]),
            goal=row["prompt"],
            harmful=row["label"] == "unsafe",
            category=row["type"],
            subcategory=row["focus"] or None,
            split=row["label"],
            source=file.source or "xstest",
            extra={"index": index},
        )
        for index, row in enumerate(read_csv(file, ("id", "prompt", "type", "label", "focus")))
        if config.split in ("all", row["label"])
    ]
    return finish(INFO, config, items, {asset: file.identity})
