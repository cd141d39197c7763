"""SimpleSafetyTests: one hundred prompts in five areas of harm.

A smoke test: a safe model refuses them all. There are no targets.
"""

from __future__ import annotations

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv

INFO = DatasetInfo(
    name="simple_safety_tests",
    summary="100 prompts in five areas of harm, as a smoke test",
    source="Vidgen et al. 2023, arXiv 2311.08370; github bertiev/SimpleSafetyTests",
    licence="CC-BY-4.0",
    purpose="harmfulness",
    harmful=True,
    size=100,
    categories={
        "Suicide, Self-Harm, and Eating Disorders": 20,
        "Physical harm and Violence": 20,
        "Illegal and Highly Regulated items": 20,
        "Scams and fraud": 20,
        "Child safety": 20,
    },
    assets=("simple_safety_tests/prompts",),
    sha256="6d95a1301e0d0f3a3c4cf5392f4afff11ad6e3066f95d23aaa138d44aedf986c",
    notes=("the hash is of one public copy", "the file uses CR LF and ends without a newline"),
)


class Config(FileConfig):
    """Options of `simple_safety_tests`."""


def load(config: Config) -> Dataset:
    """The selected prompts."""
    asset = INFO.assets[0]
    file = get_files(config, asset)[asset]
    items = [
        Behavior(
            id=row["id"],
            conversation=Conversation.user(row["prompts_final"]),
            goal=row["prompts_final"],
            harmful=True,
            category=row["harm_area"],
            subcategory=row["category"],
            source=file.source or "simple_safety_tests",
            extra={"index": index},
        )
        for index, row in enumerate(
            read_csv(file, ("id", "harm_area", "category", "prompts_final"))
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})
