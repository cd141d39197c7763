"""Benchmarks behind one interface: `load_dataset(name, **options)` gives a sequence of behaviors.

One file per dataset, found by its file name; nothing here knows any of them.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from adversariallm.core.errors import ConfigError
from adversariallm.core.plugins import DATASETS
from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._config import DatasetConfig

__all__ = ["Dataset", "DatasetConfig", "finish", "list_datasets", "load_dataset"]


def list_datasets() -> dict[str, DatasetInfo]:
    """The row of every dataset by name; reads no data."""
    return {name: DATASETS.load(name).INFO for name in DATASETS.names()}


def load_dataset(name: str, **options: Any) -> Dataset:
    """Load a dataset by name.

    Args:
        name: file name of the dataset, e.g. `starter_harmful`, or an alias.
        options: fields of the dataset's `Config`.

    Raises:
        UnknownNameError: there is no such dataset; the message holds the nearest names.
        ConfigError: an option is unknown or has a wrong value, or the selection is empty.
        DataError: a file is missing or is not what its hash says.
    """
    module = DATASETS.load(name)
    try:
        config = module.Config(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["datasets", DATASETS.resolve(name), *map(str, first["loc"])])
        raise ConfigError(f"{where}: {first['msg']} (given: {first['input']!r})") from error
    loaded: Dataset = module.load(config)
    return loaded
