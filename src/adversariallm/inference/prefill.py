"""Prefill of ragged prompts into rows of a store, in chunks of positions.

Equal prompts are computed once, and so is a beginning that all of them share: the keys of a
position are a function of the ids up to it alone. Nothing here chooses ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adversariallm.inference.cache import RaggedStore, StorePlan, key_width
from adversariallm.inference.flops import Architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.numerics import RowPolicy, padded_rows
from adversariallm.inference.prefix import Prefix

CHUNK = 512
FIXED_CHUNK = 64
STEP = 16
MAX_POSITIONS = 2048
SHARE_AT_LEAST = 16


@dataclass(frozen=True)
class Filling:
    """A prompt to compute: ids or `[P, d]` embeddings, and how much of it is stored already."""

    ids: tuple[int, ...] | None
    embeddings: torch.Tensor | None = None
    prefix: Prefix | None = None

    def __len__(self) -> int:
        """Number of positions."""
        if self.ids is not None:
            return len(self.ids)
        return 0 if self.embeddings is None else int(self.embeddings.shape[0])

    @property
    def start(self) -> int:
        """First position to compute; the last one always is."""
        return min(len(self.prefix or ()), len(self) - 1)


@dataclass
class _Cursor:
    """A store row being filled."""

    row: int
    prompt: Filling
    at: int
    logits: torch.Tensor | None = None

    @property
    def left(self) -> int:
        return len(self.prompt) - self.at


class Prefill:
    """Fills rows; call inside `Forward.attached`."""

    def __init__(self, forward: Forward, arch: Architecture, policy: RowPolicy) -> None:
        """Use `policy.prefill` for products."""
        self.forward, self.arch, self.policy = forward, arch, policy
        self.executed = 0

    def room(self, prompts: Sequence[Filling]) -> int:
        """Key positions a store needs so that padded chunks of these prompts fit."""
        return key_width(max(map(len, prompts)) + 1) if prompts else 0

    def __call__(
        self, store: RaggedStore, first: int, prompts: Sequence[Filling]
    ) -> tuple[list[torch.Tensor], int]:
        """Fill rows `first, first + 1, ...`; float32 logits after each prompt, executed FLOPs."""
        self.executed = 0
        if not prompts:
            return [], 0
        copies: dict[int, int] = {}
        seen: dict[tuple[int, ...], int] = {}
        for i, p in enumerate(prompts):
            if p.ids is not None:
                copies[i] = seen.setdefault(p.ids, i)
        unique = [i for i in range(len(prompts)) if copies.get(i, i) == i]
        cursors = {i: _Cursor(first + i, prompts[i], prompts[i].start) for i in unique}
        for cursor in cursors.values():
            if cursor.prompt.prefix is not None:
                store.fill(cursor.row, cursor.prompt.prefix)
        self._share_beginning(store, list(cursors.values()))
        while any(c.left for c in cursors.values()):
            for batch in self._batches(list(cursors.values())):
                self._advance(store, batch)
        for source in unique:
            targets = [first + i for i in copies if copies[i] == source and i != source]
            if targets:
                store.copy_row(first + source, targets, len(prompts[source]))
        logits = [cursors[copies.get(i, i)].logits for i in range(len(prompts))]
        return [row for row in logits if row is not None], self.executed

    def _share_beginning(self, store: RaggedStore, cursors: list[_Cursor]) -> None:
        """Compute the ids that all unstarted prompts begin with once."""
        rows = [c for c in cursors if c.prompt.ids is not None and c.at == 0]
        if len(rows) < 2 or self.policy.fixed:
            return
        common = common_length([c.prompt.ids or () for c in rows])
        common = min(common, *(len(c.prompt) - 1 for c in rows))
        if common < SHARE_AT_LEAST:
            return
        head = rows[0]
        part = _Cursor(head.row, Filling((head.prompt.ids or ())[:common]), 0)
        while part.left:
            self._advance(store, [part])
        store.copy_row(head.row, [c.row for c in rows[1:]], common)
        for c in rows:
            c.at = common

    def _batches(self, cursors: list[_Cursor]) -> list[list[_Cursor]]:
        """Runs of neighboring unfinished rows, small enough for memory."""
        out: list[list[_Cursor]] = []
        for c in sorted((c for c in cursors if c.left), key=lambda c: c.row):
            adjacent = bool(out) and out[-1][-1].row == c.row - 1
            if adjacent and self._fits(out[-1], c):
                out[-1].append(c)
            else:
                out.append([c])
        return out

    def _fits(self, batch: list[_Cursor], c: _Cursor) -> bool:
        """Whether one more row neither makes the batch too large nor wastes much on padding."""
        length = self._length(batch)
        close = self.policy.fixed or 4 * c.left >= 3 * length or length - c.left <= STEP
        return close and (len(batch) + 1) * length <= MAX_POSITIONS

    def _length(self, batch: list[_Cursor]) -> int:
        """Positions computed for each row of a batch, padding included."""
        if self.policy.fixed:
            return FIXED_CHUNK
        return min(CHUNK, -(-max(c.left for c in batch) // STEP) * STEP)

    def _advance(self, store: RaggedStore, batch: list[_Cursor]) -> None:
        """Compute the next chunk of each row."""
        length = self._length(batch)
        starts = torch.tensor([c.at for c in batch])
        positions = starts[:, None] + torch.arange(length)
        widths = [key_width(c.at + min(length, c.left)) for c in batch]
        plan = StorePlan(store, batch[0].row, positions, widths)
        ends = [(i, c.left - 1) for i, c in enumerate(batch) if c.left <= length]
        pick = ends or [(0, 0)]
        logits = self.forward(
            plan,
            positions.clamp(max=self.forward.context_length - 1),
            pick=([i for i, _ in pick], [o for _, o in pick]),
            products=self.policy.filling,
            **self._inputs(batch, length),
        )
        for (i, _), row in zip(ends, logits, strict=False):
            batch[i].logits = row.float()
        for c in batch:
            c.at = min(c.at + length, len(c.prompt))
        products = padded_rows(positions.numel(), self.policy.prefill)
        projected = padded_rows(len(pick), self.policy.prefill)
        width = max(w for _, w in plan.groups)
        self.executed += self.arch.forward(products, 0, projected) - self.arch.attention(
            products, 0
        )
        self.executed += len(batch) * self.arch.attention(length, width - length, square=True)

    def _inputs(self, batch: list[_Cursor], length: int) -> dict[str, torch.Tensor]:
        device = self.forward.device
        if all(c.prompt.ids is not None for c in batch):
            ids = torch.zeros(len(batch), length, dtype=torch.long)
            for i, c in enumerate(batch):
                known = (c.prompt.ids or ())[c.at : c.at + length]
                ids[i, : len(known)] = torch.tensor(known)
            return {"ids": ids.to(device)}
        rows = []
        for c in batch:
            if c.prompt.embeddings is not None:
                part = c.prompt.embeddings[c.at : c.at + length].to(device)
            else:
                ids = torch.tensor((c.prompt.ids or ())[c.at : c.at + length], device=device)
                part = self.forward.embedding(ids)
            part = part.to(self.forward.dtype)
            rows.append(torch.cat([part, part.new_zeros(length - len(part), part.shape[1])]))
        return {"embeddings": torch.stack(rows)}


def common_length(rows: Sequence[Sequence[int]]) -> int:
    """Length of the longest common beginning."""
    shortest = min(map(len, rows), default=0)
    for i in range(shortest):
        if any(r[i] != rows[0][i] for r in rows):
            return i
    return shortest
