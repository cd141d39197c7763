"""Any file with one JSON object per line as a dataset.

The keys are named by options.
"""

from __future__ import annotations

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._columns import ColumnConfig, behaviors_from
from adversariallm.datasets._files import own_file, read_jsonl

INFO = DatasetInfo(
    name="jsonl",
    summary="your own file of JSON lines, keys named by options",
    source="the user",
    licence="the user's",
    purpose="harmfulness",
    harmful=None,
    size=None,
)


class Config(ColumnConfig):
    """Options of `jsonl`."""

    path: str = Field(description="the file, UTF-8")


def load(config: Config) -> Dataset:
    """The selected lines."""
    file = own_file(config.path)
    rows = read_jsonl(file, (config.prompt,))
    return finish(INFO, config, behaviors_from(file, rows, config), {"jsonl": file.identity})
