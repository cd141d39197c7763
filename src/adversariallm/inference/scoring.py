"""Losses of many candidates after one prefix, and next-token logits.

Logits are computed at the wanted positions only, and a beginning that candidates share is computed
once where that pays; neither this nor the chunk size changes a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from adversariallm.inference.cache import RecordingPlan, SharedPlan, key_width
from adversariallm.inference.flops import Architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.memory import Retreat, rows_that_fit
from adversariallm.inference.numerics import RowPolicy, padded_rows
from adversariallm.inference.prefix import Prefix

MAX_POSITIONS = {"cpu": 512}
"""Positions computed together, by device (elsewhere 8192): short chunks waste less padding."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Item:
    """What follows the prefix for one candidate, and whose logits are wanted.

    Attributes:
        ids: ids after the prefix; with `vectors`, only those after the vectors.
        count: the logits of the last `count` positions are wanted.
        target: passed through to the reduction.
        vectors: `[P, d]` embeddings that come before `ids`.
    """

    ids: tuple[int, ...]
    count: int
    target: tuple[int, ...] = ()
    vectors: torch.Tensor | None = field(default=None, compare=False)

    @property
    def length(self) -> int:
        """Positions after the prefix."""
        return len(self.ids) + (0 if self.vectors is None else int(self.vectors.shape[0]))


@dataclass(frozen=True)
class _Placed:
    """An item with the position, counted after the prefix, where its own computation starts."""

    index: int
    item: Item
    start: int

    @property
    def new(self) -> int:
        return self.item.length - self.start


class Scorer:
    """Runs items through the model; call inside `Forward.attached` and without gradients."""

    def __init__(self, forward: Forward, arch: Architecture, policy: RowPolicy) -> None:
        """Use `policy.prefill` for products."""
        self.forward, self.arch, self.policy = forward, arch, policy
        self.executed = 0

    def map(
        self,
        prefix: Prefix,
        items: Sequence[Item],
        reduce: Callable[[torch.Tensor, Item], Result],
        chunk: int | None = None,
    ) -> list[Result]:
        """`reduce(logits, item)` of every item, where logits are `[count, V]` float32.

        Args:
            prefix: what stands before every item.
            items: ragged.
            reduce: what to keep of the logits; called for one item at a time.
            chunk: how many items run together; None finds it from memory.
        """
        shared, starts = self._shared_beginning(prefix, items)
        placed = [_Placed(i, item, starts[i]) for i, item in enumerate(items)]
        results: dict[int, Result] = {}

        def run(part: Sequence[_Placed]) -> list[Result]:
            rows = self._logits(shared, len(prefix), part)
            return [reduce(row.float(), p.item) for row, p in zip(rows, part, strict=True)]

        left = sorted(placed, key=lambda p: (-p.new, -p.item.length, p.index))
        while left:
            size = chunk or self._chunk_size(len(prefix), left)
            part, left = left[:size], left[size:]
            for p, result in zip(part, Retreat(size).map(part, run), strict=True):
                results[p.index] = result
        return [results[i] for i in range(len(items))]

    def _padded(self, length: int) -> int:
        """Positions computed for each row of a chunk whose longest item has `length`."""
        return -(-length // self.forward.step) * self.forward.step

    def _chunk_size(self, before: int, left: Sequence[_Placed]) -> int:
        """How many of the first items run together: the first is the longest.

        In safe mode only items of one shape do, so that shapes do not depend on the company.
        """
        first, count = left[0], max(p.item.count for p in left)
        size = torch.finfo(self.forward.dtype).bits // 8
        per_position = 12 * self.forward.width * size
        keys = 2 * (before + first.item.length) * self.arch.key_value_width * size
        logits = count * self.forward.num_embeddings * size
        most = max(1, MAX_POSITIONS.get(self.forward.device.type, 8192) // self._padded(first.new))
        if self.policy.fixed:
            same = [p.new == first.new and p.item.length == first.item.length for p in left]
            most = min(most, same.index(False) if False in same else len(same))
        return rows_that_fit(first.new * per_position + keys + logits, self.forward.device, most)

    def _shared_beginning(self, prefix: Prefix, items: Sequence[Item]) -> tuple[Prefix, list[int]]:
        """Extend the prefix by the items' common choice of ids, if that saves work.

        Returns:
            The extended prefix, and for each item how much of the extension it shares.
        """
        none = [0] * len(items)
        if self.policy.fixed or len(items) < 4 or any(i.vectors is not None for i in items):
            return prefix, none
        base = consensus([i.ids for i in items])
        shares = [min(agreement(base, i.ids), i.length - i.count) for i in items]
        used = max(shares)
        if used == 0 or sum(shares) < 2 * used:
            return prefix, none
        length = self._padded(used)
        positions = torch.arange(len(prefix), len(prefix) + length)[None]
        plan = RecordingPlan(prefix, positions, [key_width(len(prefix) + used)])
        ids = torch.tensor([[*base[:used], *[0] * (length - used)]], device=self.forward.device)
        at = positions.clamp(max=self.forward.context_length - 1)
        self.forward(plan, at, ids=ids, pick=([0], [0]), products=self.policy.filling)
        self._count(1, length, len(prefix), 1)
        return plan.extended(base[:used]), shares

    def _logits(self, shared: Prefix, before: int, part: Sequence[_Placed]) -> list[torch.Tensor]:
        """`[count, V]` logits of each item, in the model's type."""
        longest = self._padded(max(p.new for p in part))
        starts = torch.tensor([before + p.start for p in part])
        positions = starts[:, None] + torch.arange(longest)
        at = [(r, o) for r, p in enumerate(part) for o in range(p.new - p.item.count, p.new)]
        logits = self.forward(
            SharedPlan(shared, positions, [key_width(before + p.item.length) for p in part]),
            positions.clamp(max=self.forward.context_length - 1),
            pick=([r for r, _ in at], [o for _, o in at]),
            products=self.policy.filling,
            **self._inputs(part, longest),
        )
        cached = max(before + p.start for p in part)
        self._count(len(part), longest, cached, len(at))
        return list(torch.split(logits, [p.item.count for p in part]))

    def _inputs(self, part: Sequence[_Placed], length: int) -> dict[str, torch.Tensor]:
        ids = torch.zeros(len(part), length, dtype=torch.long)
        for r, p in enumerate(part):
            row = p.item.ids[p.start :] if p.item.vectors is None else p.item.ids
            offset = p.item.length - p.start - len(row)
            ids[r, offset : offset + len(row)] = torch.tensor(row, dtype=torch.long)
        ids = ids.to(self.forward.device)
        if all(p.item.vectors is None for p in part):
            return {"ids": ids}
        embedded = self.forward.embedding(ids).to(self.forward.dtype)
        for r, p in enumerate(part):
            if p.item.vectors is not None:
                embedded[r, : len(p.item.vectors)] = p.item.vectors.to(embedded)
        return {"embeddings": embedded}

    def _count(self, rows: int, length: int, cached: int, picked: int) -> None:
        """Add what ran to `executed`."""
        tiles = self.policy.prefill
        self.executed += self.arch.products(padded_rows(rows * length, tiles))
        self.executed += self.arch.projection(padded_rows(picked, tiles))
        self.executed += rows * self.arch.attention(length, cached, square=True)


def consensus(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The most frequent id at each position of the rows' common length (ties: lowest id)."""
    length = min(map(len, rows))
    if length == 0:
        return ()
    return tuple(torch.tensor([list(r[:length]) for r in rows]).mode(dim=0).values.tolist())


def agreement(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning of two rows."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))
