"""Any CSV file with a header as a dataset.

The columns are named by options; every cell is read as text.
"""

from __future__ import annotations

from pydantic import Field

from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._columns import ColumnConfig, behaviors_from
from adversariallm.datasets._files import own_file, read_csv

INFO = DatasetInfo(
    name="csv",
    summary="your own CSV file, columns named by options",
    source="the user",
    licence="the user's",
    purpose="harmfulness",
    harmful=None,
    size=None,
)


class Config(ColumnConfig):
    """Options of `csv`."""

    path: str = Field(description="the file, UTF-8")
    delimiter: str = Field(",", min_length=1, max_length=1, description="what separates cells")


def load(config: Config) -> Dataset:
    """The selected rows."""
    file = own_file(config.path)
    rows = read_csv(file, (config.prompt,), delimiter=config.delimiter)
    return finish(INFO, config, behaviors_from(file, rows, config), {"csv": file.identity})
