"""What a dataset's file builds on: `finish` turns its items into the dataset of a run.

Knows nothing about any particular dataset or file format; `_files` reads files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import overload

from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.core.types import Behavior, Conversation, Message, digest
from adversariallm.datasets._config import DatasetConfig
from adversariallm.datasets._select import select
from adversariallm.datasets._targets import RULE, affirmative_target


@dataclass(frozen=True)
class Dataset(Sequence[Behavior]):
    """The selected items of one dataset, immutable.

    Attributes:
        info: the row of the dataset.
        config: the options it was loaded with.
        behaviors: the items, in the order of the run.
        files: SHA-256 of each data file read, by asset id; `custom:` marks a user's own file.
    """

    info: DatasetInfo
    config: DatasetConfig
    behaviors: tuple[Behavior, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of items."""
        return len(self.behaviors)

    def __iter__(self) -> Iterator[Behavior]:
        """Iterate over the items."""
        return iter(self.behaviors)

    @overload
    def __getitem__(self, index: int) -> Behavior: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Behavior]: ...
    def __getitem__(self, index: int | slice) -> Behavior | Sequence[Behavior]:
        """The item at `index`, or a tuple of items."""
        return self.behaviors[index]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything about the items that can change a result, and of their order."""
        return digest([b.key for b in self.behaviors])

    def require_targets(self, attack: str) -> None:
        """Refuse, before a model is loaded, to run an attack that needs targets on items without.

        Raises:
            NeedsError: some item has no target, or an empty one.
        """
        without = [b.id for b in self.behaviors if not b.target]
        if without:
            raise NeedsError(
                f"attack {attack!r} needs a target, but {len(without)} of {len(self)} items of "
                f"dataset {self.info.name!r} have none (first: {without[0]!r}); set "
                f"datasets.{self.info.name}.targets=rule or "
                f"datasets.{self.info.name}.targets_file=<JSON from id to target>"
            )


def finish(
    info: DatasetInfo,
    config: DatasetConfig,
    items: Sequence[Behavior],
    files: Mapping[str, str] | None = None,
) -> Dataset:
    """The dataset of a run: items selected, targets settled, system prompt added.

    Args:
        info: the row of the dataset.
        config: the options.
        items: all items of the split, in the order of the file.
        files: what was read, as `Dataset.files`.
    """
    given = None if config.targets_file is None else _read_targets(config.targets_file)
    if given is not None and (unknown := sorted(set(given) - {b.id for b in items})):
        raise ConfigError(
            f"{config.targets_file}: {len(unknown)} ids are not in dataset {info.name!r} "
            f"(first: {unknown[0]!r})"
        )
    chosen = [_with_target(b, config, given) for b in select(info.name, items, config)]
    if config.system_prompt is not None:
        chosen = [_with_system(b, config.system_prompt) for b in chosen]
    return Dataset(info, config, tuple(chosen), dict(files or {}))


def _read_targets(path: str) -> dict[str, str]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"targets_file {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"targets_file {path!r} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, str) and v for v in found.values()):
        raise ConfigError(
            f"targets_file {path!r}: expected an object from item id to a non-empty string; "
            "of several targets of one item choose one"
        )
    return found


def _with_target(b: Behavior, config: DatasetConfig, given: Mapping[str, str] | None) -> Behavior:
    if given is not None and b.id in given:
        return replace(b, target=given[b.id], target_source="user")
    if config.targets == "none":
        return replace(b, target=None, target_source=None)
    rule = config.targets == "rule" or (config.targets == "auto" and b.target is None and b.harmful)
    if rule:
        return replace(b, target=affirmative_target(b.goal), target_source=RULE)
    return b if b.target is None or b.target_source else replace(b, target_source="dataset")


def _with_system(b: Behavior, text: str) -> Behavior:
    rest = [m for m in b.conversation if m.role != "system"]
    return replace(b, conversation=Conversation((Message("system", text), *rest)))
