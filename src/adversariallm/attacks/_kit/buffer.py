"""The best candidates seen so far, sorted by the loss that guided the search.

nanoGCG's buffer semantics: the worst entry gives way to a better newcomer, the search goes on from
the best. Source: nanoGCG 0.3.0 (behavior only).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from adversariallm.attacks._kit.proposals import replace_uniformly
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.rng import Rng


class Entry(NamedTuple):
    """One kept candidate; tuples compare by objective first."""

    objective: float
    slot: list[int]
    matched: bool
    target_loss: float


class Buffer:
    """At most `size` entries, best first; equal slots are kept once."""

    def __init__(self, size: int, entries: list[Entry] | None = None) -> None:
        """Start with the given entries."""
        self.size = size
        self.entries: list[Entry] = entries or []

    @property
    def best(self) -> Entry:
        """The entry with the lowest objective."""
        return self.entries[0]

    def add(self, objective: float, slot: list[int], matched: bool, target_loss: float) -> None:
        """Insert a candidate where it belongs, dropping the worst beyond `size`."""
        if any(e.slot == slot for e in self.entries):
            return
        self.entries.append(Entry(objective, slot, matched, target_loss))
        self.entries.sort(key=lambda e: e.objective)
        del self.entries[self.size :]

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()

    def to_json(self) -> list[list[Any]]:
        """JSON form."""
        return [list(e) for e in self.entries]

    @classmethod
    def from_json(cls, size: int, rows: list[list[Any]]) -> Buffer:
        """Inverse of `to_json`."""
        return cls(size, [Entry(*row) for row in rows])


def random_fill(problem: SlotProblem, size: int, rng: Rng) -> Tensor:
    """`[max(1, size), n]` the initial slot, then random reachable ones of its length.

    There are fewer where eight draws do not reach so many.
    """
    rows = [problem.start.unsqueeze(0)]
    n = len(problem.start)
    for attempt in range(8):
        have = sum(len(r) for r in rows)
        if have >= size:
            break
        width = 4 * (size - have)
        positions = torch.arange(n).expand(width, n)
        drawn = replace_uniformly(
            problem.start, positions, problem.allowed_ids, rng.child(attempt).torch()
        )
        rows.append(problem.reachable(drawn)[0][: size - have])
    return torch.cat(rows)
