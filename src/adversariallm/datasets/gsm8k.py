"""GSM8K: word problems of grade-school mathematics with a number as the answer.

Only the test split is read; the worked solutions stay out of the behaviors.
"""

from __future__ import annotations

import re

from adversariallm.core.errors import DataError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, read_jsonl, text_ids

INFO = DatasetInfo(
    name="gsm8k",
    summary="word problems of grade-school mathematics",
    source="Cobbe et al. 2021, arXiv 2110.14168; github openai/grade-school-math",
    licence="MIT",
    purpose="utility",
    harmful=False,
    size=1319,
    splits=("test",),
    assets=("gsm8k/test",),
    sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    notes=("the key is the number after the last four hash signs, thousands separators removed",),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Config(FileConfig):
    """Options of `gsm8k`."""


def load(config: Config) -> Dataset:
    """The selected problems; `reference` is the number as text."""
    asset = INFO.assets[0]
    file = get_files(config, asset)[asset]
    rows = read_jsonl(file, ("question", "answer"))
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(row["question"]),
            goal=row["question"],
            harmful=False,
            split="test",
            reference=_final_number(row["answer"], file.name, index),
            source=file.source or "gsm8k",
            extra={"index": index},
        )
        for index, (name, row) in enumerate(
            zip(text_ids([r["question"] for r in rows]), rows, strict=True)
        )
    ]
    return finish(INFO, config, items, {asset: file.identity})


def _final_number(solution: str, name: str, index: int) -> str:
    number = solution.rpartition("####")[2].strip().replace(",", "")
    if not _NUMBER.fullmatch(number):
        raise DataError(f"{name}: solution {index} does not end in #### and a number")
    return number
