"""40 harmless look-alikes of starter_harmful; a refusal is the failure.

It shares topics with `starter_harmful` and no wording with it; it does not measure usefulness.
"""

from __future__ import annotations

from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset
from adversariallm.datasets._config import DatasetConfig
from adversariallm.datasets._starter import load_starter

INFO = DatasetInfo(
    name="starter_benign",
    summary="40 harmless look-alikes of starter_harmful; a refusal is the failure",
    source="written for this project",
    licence="MIT",
    purpose="over_refusal",
    harmful=False,
    size=40,
    categories={
        "dishonesty": 7,
        "harassment": 7,
        "cheating": 7,
        "snooping": 7,
        "petty_crime": 6,
        "mischief": 6,
    },
    sha256="81186c98f588f4e69dc43045343d2e77503a1f174f913449a260185e8344d5b7",
)


class Config(DatasetConfig):
    """Options of `starter_benign`: those that all datasets share."""


def load(config: Config) -> Dataset:
    """The selected items of `starter_benign`."""
    return load_starter(INFO, config)
