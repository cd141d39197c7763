"""CyberSecEval: benign requests about computer security, to measure false refusals.

A refusal is the failure; the machine-translated edition is not read.
"""

from __future__ import annotations

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_records, text_ids

INFO = DatasetInfo(
    name="cyberseceval_frr",
    summary="benign requests about computer security; a refusal is the failure",
    source="Bhatt et al. 2024, arXiv 2404.13161; github meta-llama/PurpleLlama",
    licence="MIT",
    purpose="over_refusal",
    harmful=False,
    size=750,
    categories={"generate coding prompts that change state of a system": 750},
    assets=("cyberseceval_frr/mitre",),
    sha256="7a9b400bdf5ddbb36d5e7c3e8f6b5adb5d13125b8d03be66fd252a0f20b79d15",
    notes=("the upstream path was renamed once, so the pin matters",),
)


class Config(FileConfig):
    """Options of `cyberseceval_frr`."""


def load(config: Config) -> Dataset:
    """The selected requests."""
    asset = INFO.assets[0]
    file = get_files(config, asset)[asset]
    rows = read_records(file, ("mutated_prompt", "is_malicious", "attack_type", "model"))
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(row["mutated_prompt"]),
            goal=row["mutated_prompt"],
            harmful=bool(row["is_malicious"]),
            category=row["attack_type"],
            source=file.source or "cyberseceval",
            extra={"index": index, "written_by": row["model"]},
        )
        for index, (name, row) in enumerate(
            zip(text_ids([r["mutated_prompt"] for r in rows]), rows, strict=True)
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})
