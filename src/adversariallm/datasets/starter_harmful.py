"""40 mild requests that a safety-tuned model should decline.

Every item is petty on purpose: nothing here is dangerous, so a small model can be tested in public.
"""

from __future__ import annotations

from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset
from adversariallm.datasets._config import DatasetConfig
from adversariallm.datasets._starter import load_starter

INFO = DatasetInfo(
    name="starter_harmful",
    summary="40 mild requests that a safety-tuned model should decline",
    source="written for this project",
    licence="MIT",
    purpose="harmfulness",
    harmful=True,
    size=40,
    categories={
        "dishonesty": 7,
        "harassment": 7,
        "cheating": 7,
        "snooping": 7,
        "petty_crime": 6,
        "mischief": 6,
    },
    sha256="5cf0ff2974d8c325eefa1c0b90656b15b1ec4f5565e015d80693548a2c769c53",
    targets=True,
)


class Config(DatasetConfig):
    """Options of `starter_harmful`: those that all datasets share."""


def load(config: Config) -> Dataset:
    """The selected items of `starter_harmful`."""
    return load_starter(INFO, config)
