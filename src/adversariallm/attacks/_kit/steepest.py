"""A step for rows on the simplex that keeps how much better one token is than another.

Adam divides every entry by its own size, so that all of a large vocabulary's tokens whose slope has
a steady sign advance alike, and a row needs many steps to tell them apart. Here the slot's averaged
gradient keeps its shape: the token that promises most, of all rows, advances by the whole rate, so
that few positions change at a time. Ours; no paper's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def steepest(
    gradient: Tensor, allowed: Tensor, moments: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The direction to step against, and the new moments.

    The simplex takes no notice of a constant added to a row, so rows are centered before all are
    divided by their largest absolute value. Rows without any difference stay 0.

    Args:
        gradient: `[n, V]`, 0 on forbidden ids.
        allowed: `[V]` bool.
        moments: `first` of the step before; empty at the start.
    """
    first = 0.9 * moments.get("first", torch.zeros_like(gradient)) + 0.1 * gradient
    mean = first.sum(-1, keepdim=True) / allowed.sum().clamp_min(1)
    centered = (first - mean).masked_fill(~allowed, 0.0)
    direction = centered / centered.abs().max().clamp_min(torch.finfo(gradient.dtype).tiny)
    return direction, {"first": first}
