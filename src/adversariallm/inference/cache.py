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
    """How many keys a row with `length` visible positions is given.

    Its own length decides. Rounding lets rows of similar length be attended to together; the page
    `design/batch-invariance.md` tells what exact widths did in bfloat16.
    """
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


def runs(widths: Sequence[int]) -> list[tuple[slice, int]]:
    """Stretches of neighboring rows with equal width, each with that width."""
    cuts = [0, *(i for i in range(1, len(widths)) if widths[i] != widths[i - 1]), len(widths)]
    return [(slice(a, b), widths[a]) for a, b in zip(cuts, cuts[1:], strict=False)]


class StorePlan:
    """New positions are written to consecutive rows of a store, and every row sees its own keys."""

    def __init__(
        self, store: RaggedStore, first: int, positions: torch.Tensor, widths: Sequence[int]
    ) -> None:
        """Plan a forward pass of `T` positions for each of `B` rows.

        Args:
            store: where keys are kept; one position wider than the longest row.
            first: store row of batch row 0; the others follow. Batch rows beyond `B` are padding.
            positions: `[B, T]` positions; what lies at or beyond a row's end is padding.
            widths: how many keys each row is given, which its own length must decide.
        """
        self.store = store
        self.first = first
        self.positions = positions.clamp(max=store.width - 1)
        self.index = torch.arange(first, first + positions.shape[0])
        self.groups = [(rows, min(width, store.width)) for rows, width in runs(widths)]
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
                    self.positions.shape[1] == 1,
                )
            )
        return out


class SharedPlan:
    """All rows start with the same stored keys and add their own; nothing is kept. Differentiable.

    Rows may start at different positions: a row that starts at `s` sees the first `s` shared keys.
    """

    def __init__(self, shared: Prefix, positions: torch.Tensor, widths: Sequence[int]) -> None:
        """Plan a forward pass.

        Args:
            shared: stored keys; at least as long as the latest start.
            positions: `[B, T]` consecutive positions of each row.
            widths: how many keys each row is given, which its own length must decide.
        """
        self.shared = shared
        self.positions = positions
        self.groups = runs(widths)
        self.masks: list[dict[Any, torch.Tensor]] = [{} for _ in self.groups]
        self.seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _join(
        self, old: torch.Tensor | None, new: torch.Tensor, positions: torch.Tensor, width: int
    ) -> torch.Tensor:
        """`[B, H, width, D]`: the stored beginning of each row followed by its own."""
        batch, heads, length, dim = new.shape
        starts = positions[:, 0].tolist()
        if len(set(starts)) == 1:
            parts = [new[:, :, : width - starts[0]]]
            if starts[0]:
                assert old is not None  # noqa: S101  a start above 0 needs stored keys
                parts.insert(0, old[:, :, : starts[0]].expand(batch, -1, -1, -1))
            missing = width - starts[0] - length
            if missing > 0:
                parts.append(new.new_zeros(batch, heads, missing, dim))
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        last = int(positions.max()) + 1
        out = new.new_zeros(batch, heads, max(last, width), dim)
        if old is not None:
            out[:, :, : old.shape[2]] = old[:, :, : out.shape[2]]
        rows = torch.arange(batch, device=new.device)[:, None]
        out[rows, :, positions.to(new.device)] = new.transpose(1, 2)
        return out[:, :, :width]

    def blocks(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Block]:
        """One block per run of rows that end together."""
        stored = len(self.shared) > 0
        old_keys = self.shared.keys[layer] if stored else None
        old_values = self.shared.values[layer] if stored else None
        out = []
        for (rows, width), masks in zip(self.groups, self.masks, strict=True):
            at = self.positions[rows]
            joined = self._join(old_keys, keys[rows], at, width)
            joined_values = self._join(old_values, values[rows], at, width)
            out.append(Block(rows, joined, joined_values, at, masks))
        return out


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
        keys, values = ([p[k][:, :, : len(ids)] for p in pairs] for k in (0, 1))
        if stored:
            keys = [torch.cat(p, dim=2) for p in zip(self.shared.keys, keys, strict=True)]
            values = [torch.cat(p, dim=2) for p in zip(self.shared.values, values, strict=True)]
        return Prefix((*self.shared.ids, *ids), tuple(keys), tuple(values))
