"""Where keys and values of ragged rows are kept, and the plans that attention reads them through.

Every row's keys lie from position 0 on, without gaps; what lies behind a row's end is finite and
masked. Nothing here decides which rows run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache

from adversariallm.inference.attention import Block
from adversariallm.inference.prefix import Prefix


def key_width(length: int) -> int:
    """How many keys a row with `length` visible positions is given: its own length decides."""
    step = 64 if length <= 512 else 256
    return -(-length // step) * step


class PassThrough(Cache):
    """What the model is handed as its cache: it keeps nothing, the plan does."""

    def __init__(self) -> None:
        """Without layers."""
        super().__init__(layers=[])

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values as they are."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions are passed to the model explicitly."""
        return 0


class RaggedStore:
    """Keys and values `[rows, H_kv, width, D]` of every layer, allocated when first seen."""

    def __init__(self) -> None:
        """Empty."""
        self.rows = 0
        self.width = 0
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def rearrange(self, order: Sequence[int | None], width: int) -> None:
        """Keep the rows named by `order`, in that order; None makes a fresh row.

        Args:
            order: for each new row, the old row it is copied from.
            width: new number of key positions.
        """
        kept = [(new, old) for new, old in enumerate(order) if old is not None]
        for tensors in (self.keys, self.values):
            for layer, old in tensors.items():
                shape = (len(order), old.shape[1], width, old.shape[3])
                fresh = old.new_zeros(shape)
                shared = min(width, self.width)
                if kept:
                    to, source = (
                        torch.tensor(i, device=old.device) for i in zip(*kept, strict=True)
                    )
                    fresh[to, :, :shared] = old[source, :, :shared]
                tensors[layer] = fresh
        self.rows, self.width = len(order), width

    def write(
        self,
        layer: int,
        rows: torch.Tensor,
        positions: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Store `[B, H_kv, T, D]` at `positions` `[B, T]` of `rows` `[B]`."""
        for tensors, new in ((self.keys, keys), (self.values, values)):
            if layer not in tensors:
                tensors[layer] = new.new_zeros(self.rows, new.shape[1], self.width, new.shape[3])
            store = tensors[layer]
            index = (rows[:, None].to(store.device), slice(None), positions.to(store.device))
            store[index] = new.transpose(1, 2)

    def fill(self, row: int, prefix: Prefix) -> None:
        """Copy a prefix to the start of `row`."""
        for layer, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
            for tensors, new in ((self.keys, keys), (self.values, values)):
                if layer not in tensors:
                    tensors[layer] = new.new_zeros(
                        self.rows, new.shape[1], self.width, new.shape[3]
                    )
                tensors[layer][row, :, : len(prefix)] = new[0]

    def copy_row(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of one row to others."""
        for tensors in (self.keys, self.values):
            for store in tensors.values():
                store[list(targets), :, :length] = store[source, :, :length]

    def extract(
        self, row: int, length: int
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Copies of the first `length` keys and values of a row, per layer."""
        layers = range(len(self.keys))
        keys = tuple(self.keys[i][row : row + 1, :, :length].clone() for i in layers)
        values = tuple(self.values[i][row : row + 1, :, :length].clone() for i in layers)
        return keys, values


class StorePlan:
    """New positions are written to consecutive rows of a store, and every row sees its own keys."""

    def __init__(
        self, store: RaggedStore, first: int, positions: torch.Tensor, ends: Sequence[int]
    ) -> None:
        """Plan a forward pass of `T` positions for each of `B` rows.

        Args:
            store: where keys are kept; one position wider than the longest row.
            first: store row of batch row 0; the others follow. Batch rows beyond `B` are padding.
            positions: `[B, T]` positions; what lies at or beyond a row's end is padding.
            ends: where each row ends after this pass; decides how many keys it sees.
        """
        self.store = store
        self.first = first
        self.positions = positions.clamp(max=store.width - 1)
        self.index = torch.arange(first, first + positions.shape[0])
        widths = [key_width(end) for end in ends]
        cuts = [0, *(i for i in range(1, len(widths)) if widths[i] != widths[i - 1]), len(widths)]
        self.groups = [
            (slice(a, b), min(widths[a], store.width)) for a, b in zip(cuts, cuts[1:], strict=False)
        ]
        self.masks: list[dict[Any, torch.Tensor]] = [{} for _ in self.groups]

    def blocks(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Block]:
        """Write, then give one block per run of rows with equal width."""
        count = len(self.index)
        self.store.write(layer, self.index, self.positions, keys[:count], values[:count])
        out = []
        for (rows, width), masks in zip(self.groups, self.masks, strict=True):
            stored = slice(self.first + rows.start, self.first + rows.stop)
            out.append(
                Block(
                    rows,
                    self.store.keys[layer][stored, :, :width],
                    self.store.values[layer][stored, :, :width],
                    self.positions[rows],
                    masks,
                )
            )
        return out


class SharedPlan:
    """All rows start with the same stored keys and add their own; nothing is kept. Differentiable.

    Rows may start at different positions: a row that starts at `s` sees the first `s` shared keys.
    """

    def __init__(self, shared: Prefix, positions: torch.Tensor, width: int | None = None) -> None:
        """Plan a forward pass.

        Args:
            shared: stored keys; at least as long as the latest start.
            positions: `[B, T]` consecutive positions of each row.
            width: number of keys given to attention; None for just what is needed.
        """
        self.shared = shared
        self.positions = positions
        starts = positions[:, 0].tolist()
        self.uniform = len(set(starts)) == 1
        self.start = int(starts[0])
        self.width = width or int(positions.max()) + 1
        self.masks: dict[Any, torch.Tensor] = {}
        self.seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _join(self, old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        batch, heads, length, dim = new.shape
        if self.uniform:
            parts = [new]
            if self.start:
                assert old is not None  # noqa: S101  a start above 0 needs stored keys
                parts = [old[:, :, : self.start].expand(batch, -1, -1, -1), new]
            missing = self.width - self.start - length
            if missing > 0:
                parts.append(new.new_zeros(batch, heads, missing, dim))
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        out = new.new_zeros(batch, heads, self.width, dim)
        if old is not None:
            out[:, :, : old.shape[2]] = old[:, :, : self.width]
        positions = self.positions.to(new.device)
        # a row that starts late is padded past the width; what stands there is nobody's key
        real = positions < self.width
        rows = torch.arange(batch, device=new.device)[:, None].expand_as(positions)
        out[rows[real], :, positions[real]] = new.transpose(1, 2)[real]
        return out

    def blocks(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Block]:
        """One block: the shared keys followed by the row's own."""
        stored = len(self.shared) > 0
        joined = self._join(self.shared.keys[layer] if stored else None, keys)
        joined_values = self._join(self.shared.values[layer] if stored else None, values)
        return [Block(slice(0, len(keys)), joined, joined_values, self.positions, self.masks)]


class RecordingPlan(SharedPlan):
    """A `SharedPlan` of one row that also remembers the new keys and values."""

    def blocks(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Block]:
        """As `SharedPlan`, remembering what was new."""
        self.seen[layer] = (keys, values)
        return super().blocks(layer, keys, values)

    def extended(self, ids: Sequence[int]) -> Prefix:
        """The shared prefix continued by what was recorded; it has no cost of its own."""
        stored = len(self.shared) > 0
        pairs = [self.seen[i] for i in range(len(self.seen))]
        keys, values = ([p[k] for p in pairs] for k in (0, 1))
        if stored:
            keys = [torch.cat(p, dim=2) for p in zip(self.shared.keys, keys, strict=True)]
            values = [torch.cat(p, dim=2) for p in zip(self.shared.values, values, strict=True)]
        return Prefix((*self.shared.ids, *ids), tuple(keys), tuple(values))
