"""Alpaca: instructions with answers, many with an input that belongs to the request.

The whole answer is the target, as the set has no shorter prefix. It is not a benchmark of anything.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_records, text_ids

INFO = DatasetInfo(
    name="alpaca",
    summary="harmless instructions with answers",
    source="Taori et al. 2023; github tatsu-lab/stanford_alpaca",
    licence="CC-BY-NC-4.0",
    purpose="utility",
    harmful=False,
    size=52002,
    splits=("full", "head_500"),
    assets=("alpaca/full", "alpaca/head_500"),
    sha256="2eddafc6b977608d778aaab8dfc7e50e547b3af9826dfb9e909d9fc362e4a419",
    targets=True,
    notes=(
        "20679 requests are incomplete without their input",
        "mirrors with planted rows are in circulation, so the hash is checked",
    ),
)


class Config(FileConfig):
    """Options of `alpaca`."""

    split: Literal["full", "head_500"] = Field("full", description="head_500 is its first 500 rows")
    with_input: Literal["append", "skip"] = Field(
        "append", description="put the input under the instruction, or leave such items out"
    )


def load(config: Config) -> Dataset:
    """The selected instructions."""
    asset = f"alpaca/{config.split}"
    file = get_files(config, asset)[asset]
    rows = read_records(file, ("instruction", "input", "output"))
    prompts = [
        f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"]
        for row in rows
    ]
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(prompt),
            goal=prompt,
            harmful=False,
            target=row["output"] or None,
            context=row["input"] or None,
            split=config.split,
            source=file.source or "alpaca",
            extra={"index": index},
        )
        for index, (name, prompt, row) in enumerate(
            zip(text_ids(prompts), prompts, rows, strict=True)
        )
        if config.with_input == "append" or not row["input"]
    ]
    return finish(INFO, config, items, {asset: file.identity})
