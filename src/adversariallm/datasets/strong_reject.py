"""StrongREJECT: forbidden prompts in six categories.

No targets were published with it, so the rule makes them; the evaluator is a judge and not here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_csv, text_ids

INFO = DatasetInfo(
    name="strong_reject",
    summary="forbidden prompts in six categories; small is a subset of 60",
    source="Souly et al. 2024, arXiv 2402.10260; github alexandrasouly/strongreject",
    licence="MIT",
    purpose="harmfulness",
    harmful=True,
    size=313,
    categories={
        "Non-violent crimes": 59,
        "Violence": 54,
        "Disinformation and deception": 50,
        "Hate, harassment and discrimination": 50,
        "Illegal goods and services": 50,
        "Sexual content": 50,
    },
    splits=("full", "small"),
    assets=("strong_reject/full", "strong_reject/small"),
    sha256="4dd70357e4ff8b5d0ba5ebafecab5d6dd5633ce8046e3dd1c8bd93e64de44381",
    notes=(
        "313 records on 324 lines: two prompts hold newlines",
        "the small file spells one category with another capital; both read as in the full file",
        "an earlier upstream state had 346 and 50 rows, so the pin matters",
    ),
)


class Config(FileConfig):
    """Options of `strong_reject`."""

    split: Literal["full", "small"] = Field(
        "full", description="small has ten prompts per category"
    )


def load(config: Config) -> Dataset:
    """The selected prompts."""
    asset = f"strong_reject/{config.split}"
    file = get_files(config, asset)[asset]
    rows = read_csv(file, ("category", "source", "forbidden_prompt"))
    spelling = {c.casefold(): c for c in INFO.categories}
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(row["forbidden_prompt"]),
            goal=row["forbidden_prompt"],
            harmful=True,
            category=spelling.get(row["category"].casefold(), row["category"]),
            split=config.split,
            source=file.source or row["source"],
            extra={"index": index},
        )
        for index, (name, row) in enumerate(
            zip(text_ids([r["forbidden_prompt"] for r in rows]), rows, strict=True)
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})
