"""Attention of ragged rows over keys that lie from position 0 on, registered with transformers.

Masks come from positions alone. The function knows nothing about where keys are stored: the active
plan (see `cache`) hands them over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

NAME = "adversariallm_ragged"
DECODE_ROWS = 4
"""Fewer query rows make the CPU kernel's bits depend on the thread that computes a row."""
QUERY_ROWS = 32
"""Elsewhere query rows fill the CPU kernel's blocks, so that every block has one shape."""
MOST_ROWS = 160
"""From 192 query rows on the CPU kernel takes larger blocks; fewer are given to it at once."""


@dataclass(frozen=True)
class Block:
    """Some consecutive batch rows whose keys have one width.

    Attributes:
        rows: the batch rows `[start, stop)`.
        keys: `[B, H_kv, W, D]`.
        values: `[B, H_kv, W, D_v]`.
        positions: `[B, T]` position of each query in its own sequence.
        masks: cache of additive masks of this block by (window, groups, dtype, device).
        decode: whether there is one query per row.
    """

    rows: slice
    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    masks: dict[Any, torch.Tensor]
    decode: bool = False


class Plan(Protocol):
    """Where the keys of the running forward pass are."""

    def blocks(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Sequence[Block]:
        """Store the new keys and values of `layer`, and give what each row attends to."""


_ACTIVE: ContextVar[Plan] = ContextVar("active_plan")


@contextmanager
def active(plan: Plan) -> Iterator[None]:
    """Let attention of the calls inside use `plan`."""
    token = _ACTIVE.set(plan)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _mask(block: Block, groups: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """`[B, 1, groups * T, W]`: 0 where a key is visible, -inf elsewhere."""
    key = (window, groups, like.dtype, like.device)
    if key not in block.masks:
        width = block.keys.shape[2]
        index = torch.arange(width, device=like.device)
        # a padding query beyond the width sees the last keys: nothing visible would give NaN
        position = block.positions.to(like.device)[:, :, None].clamp(max=width - 1)
        visible = index <= position
        if window is not None:
            visible &= index > position - window
        mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
        mask.masked_fill_(~visible, float("-inf"))
        block.masks[key] = mask.repeat(1, groups, 1)[:, None]
    return block.masks[key]


def attend(
    query: torch.Tensor,
    block: Block,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention output `[B, H, T, D_v]` of `query` `[B, H, T, D]` over a block.

    Query heads that share a key head are folded into the query length, so keys are never copied.
    """
    batch, heads, length, dim = query.shape
    kv_heads = block.keys.shape[1]
    groups = heads // kv_heads
    folded = query.reshape(batch, kv_heads, groups * length, dim)
    mask = _mask(block, groups, window, query)
    rows = folded.shape[2]
    step = DECODE_ROWS if block.decode else QUERY_ROWS
    missing = -rows % step
    if missing:
        folded = torch.cat([folded, folded[:, :, :1].expand(-1, -1, missing, -1)], dim=2)
        mask = torch.cat([mask, mask[:, :, :1].expand(-1, -1, missing, -1)], dim=2)
    outs: list[torch.Tensor] = []
    split = (torch.split(t, MOST_ROWS, dim=2) for t in (folded, mask))
    for queries, visible in zip(*split, strict=True):
        if softcap is None and sinks is None:
            out = F.scaled_dot_product_attention(
                queries, block.keys, block.values, attn_mask=visible, scale=scale
            )
        else:
            columns = _sink_columns(sinks, length, len(outs) * MOST_ROWS, queries)
            out = _explicit(queries, block, visible, scale, softcap, columns)
        outs.append(out)
    joined = outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)
    return joined[:, :, :rows].reshape(batch, heads, length, -1)


def _sink_columns(
    sinks: torch.Tensor | None, length: int, first: int, queries: torch.Tensor
) -> torch.Tensor | None:
    """`[B, H_kv, rows, 1]` sink score of each folded query row from row `first` on."""
    if sinks is None:
        return None
    batch, kv_heads, count, _ = queries.shape
    per_row = sinks.view(kv_heads, -1).repeat_interleave(length, dim=1)[:, first : first + count]
    per_row = F.pad(per_row, (0, count - per_row.shape[1]))
    return per_row[None, :, :, None].expand(batch, -1, -1, 1)


def _explicit(
    query: torch.Tensor,
    block: Block,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention written out, for soft-capped scores and attention sinks.

    A sink is one more score per query that takes probability and gives no value.
    """
    scores = torch.matmul(query, block.keys.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    width = scores.shape[-1]
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights[..., :width], block.values)


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; keys and values are those of the new positions."""
    plan = _ACTIVE.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs = [
        attend(query[b.rows], b, scale=scale, window=sliding_window, softcap=softcap, sinks=s_aux)
        for b in plan.blocks(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    ]
    missing = len(query) - sum(len(o) for o in outputs)
    if missing:  # rows that only fill a tile
        outputs.append(outputs[0].new_zeros(missing, *outputs[0].shape[1:]))
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, ragged_attention)
