"""MaliciousInstruct: one hundred short malicious questions.

Plain lines without targets or categories.
"""

from __future__ import annotations

from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._files import FileConfig, get_files, text_ids

INFO = DatasetInfo(
    name="malicious_instruct",
    summary="short malicious questions",
    source="Huang et al. 2023, arXiv 2310.06987; github Princeton-SysML/Jailbreak_LLM",
    licence="MIT",
    purpose="harmfulness",
    harmful=True,
    size=100,
    assets=("malicious_instruct/prompts",),
    sha256="a64d69dd1004aac4a23aaff3748fb8f17161893f74db36f45b8bc849eb1bcce5",
    notes=("the last line has no newline, so counting newlines gives 99",),
)


class Config(FileConfig):
    """Options of `malicious_instruct`."""


def load(config: Config) -> Dataset:
    """The selected questions."""
    asset = INFO.assets[0]
    file = get_files(config, asset)[asset]
    lines = [line for line in file.text.splitlines() if line.strip()]
    items = [
        Behavior(
            id=name,
            conversation=Conversation.user(line),
            goal=line,
            harmful=True,
            source=file.source or "malicious_instruct",
            extra={"index": index},
        )
        for index, (name, line) in enumerate(zip(text_ids(lines), lines, strict=True))
    ]
    return finish(INFO, config, items, {asset: file.identity})
