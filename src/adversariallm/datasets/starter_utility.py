"""40 short questions with checkable answers.

Answers are short and have one spelling; it does not replace a benchmark.
"""

from __future__ import annotations

from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset
from adversariallm.datasets._config import DatasetConfig
from adversariallm.datasets._starter import load_starter

INFO = DatasetInfo(
    name="starter_utility",
    summary="40 short questions with checkable answers",
    source="written for this project",
    licence="MIT",
    purpose="utility",
    harmful=False,
    size=40,
    categories={
        "arithmetic": 7,
        "geography": 7,
        "science": 7,
        "language": 7,
        "everyday": 7,
        "culture": 5,
    },
    sha256="4263dc488f25bbefe0bc6bbaf4fbcee9174987290408b809b2190a5e9a7e59cd",
)


class Config(DatasetConfig):
    """Options of `starter_utility`: those that all datasets share."""


def load(config: Config) -> Dataset:
    """The selected items of `starter_utility`."""
    return load_starter(INFO, config)
