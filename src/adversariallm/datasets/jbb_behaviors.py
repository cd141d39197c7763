"""JailbreakBench: 100 harmful behaviors in ten categories and a benign twin for each.

Twins share their index. Targets of benign items are defective upstream and only used
with `targets=dataset`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv

_CATEGORIES = (
    "Harassment/Discrimination",
    "Malware/Hacking",
    "Physical harm",
    "Economic harm",
    "Fraud/Deception",
    "Disinformation",
    "Sexual/Adult content",
    "Privacy",
    "Expert advice",
    "Government decision-making",
)
INFO = DatasetInfo(
    name="jbb_behaviors",
    summary="100 harmful behaviors and their 100 benign twins",
    source="Chao et al. 2024, arXiv 2404.01318; hub JailbreakBench/JBB-Behaviors",
    licence="MIT",
    purpose="harmfulness",
    harmful=None,
    size=200,
    categories=dict.fromkeys(_CATEGORIES, 20),
    splits=("harmful", "benign"),
    assets=("jbb_behaviors/harmful", "jbb_behaviors/benign"),
    sha256="4a8ec6832056b631eb092dccc60d37a61c3d441268268888b3d006288afeffa1",
    targets=True,
    notes=(
        "join twins on the index: one pair spells its behavior differently",
        "some benign targets belong to the harmful twin",
    ),
)


class Config(FileConfig):
    """Options of `jbb_behaviors`."""

    split: Literal["harmful", "benign"] = Field(
        "harmful", description="benign measures over-refusal"
    )


def load(config: Config) -> Dataset:
    """The selected behaviors."""
    asset = f"jbb_behaviors/{config.split}"
    file = get_files(config, asset)[asset]
    harmful = config.split == "harmful"
    items = [
        Behavior(
            id=f"{config.split}-{row['Index']}",
            conversation=Conversation.user(row["Goal"]),
            goal=row["Goal"],
            harmful=harmful,
            target=row["Target"] if harmful or config.targets == "dataset" else None,
            category=row["Category"],
            subcategory=row["Behavior"],
            split=config.split,
            source=file.source or row["Source"],
            extra={"index": int(row["Index"])},
        )
        for row in read_csv(file, ("Index", "Goal", "Target", "Behavior", "Category", "Source"))
    ]
    return finish(INFO, config, items, {asset: file.identity})
