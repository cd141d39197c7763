"""Reads the starter sets, which we wrote and which travel inside the package.

One JSON object per line; the hash in a set's INFO row must fit, so an edit of the data is a new
version of the set.
"""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files

from adversariallm.core.errors import DataError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._config import DatasetConfig


def load_starter(info: DatasetInfo, config: DatasetConfig) -> Dataset:
    """The starter set that `info` describes.

    Raises:
        DataError: the file inside the package was changed.
    """
    raw = files("adversariallm.datasets").joinpath("data", f"{info.name}.jsonl").read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != info.sha256:
        raise DataError(
            f"data/{info.name}.jsonl has SHA-256 {found}, expected {info.sha256}; reinstall "
            "adversariallm, or after an intended edit write the new hash into the INFO row and "
            "raise its version"
        )
    rows = [json.loads(line) for line in raw.decode("utf-8").splitlines()]
    items = [
        Behavior(
            id=row["id"],
            conversation=Conversation.user(row["prompt"]),
            goal=row["prompt"],
            harmful=bool(info.harmful),
            target=row.get("target"),
            category=row["category"],
            reference=row.get("reference"),
            source="adversariallm",
        )
        for row in rows
    ]
    return finish(info, config, items, {info.name: found})
