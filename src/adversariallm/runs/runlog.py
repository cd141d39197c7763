"""Where a run in progress keeps what it finished: a claim of the store, or memory.

Only the shape and the memory form are here; the store's claim offers the same three methods.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from adversariallm.runs.journal import Entry, Resumed

if TYPE_CHECKING:
    import torch


class RunLog(Protocol):
    """What `runs.execute` needs of a log."""

    def resume(self) -> Resumed:
        """What earlier generations finished."""

    def append(
        self,
        kind: str,
        record: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Keep a record; when this returns, a killed process cannot lose it."""

    def heartbeat(self) -> None:
        """Raise `LostLeaseError` where another worker took over."""


@dataclass(frozen=True)
class MemoryEntry(Entry):
    """A record with its tensors at hand."""

    held: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Any]:
        """The tensors that were appended with the record."""
        return dict(self.held)


class MemoryLog:
    """A log for runs that nobody stores; started with entries, it continues after them."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        """Start after the given entries."""
        self.entries: list[Entry] = list(entries)
        self._resumed = Resumed(tuple(entries))

    def resume(self) -> Resumed:
        """What it was started with."""
        return self._resumed

    def append(
        self,
        kind: str,
        record: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Keep a copy of the record; like a file, it only takes JSON values."""
        kept = json.loads(json.dumps(record))
        held = {name: tensor.clone() for name, tensor in (tensors or {}).items()}
        self.entries.append(MemoryEntry(kind, kept, None, held))

    def heartbeat(self) -> None:
        """Nobody can take over what is in memory."""
