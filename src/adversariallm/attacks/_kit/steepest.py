"""A step for rows on the simplex that keeps how much better one token is than another.

Adam divides every entry by its own size, so that all of a large vocabulary's tokens whose slope has
a steady sign advance alike, and a row needs many steps to tell them apart. Here a row's averaged
gradient keeps its shape: in every row the token that promises most advances by the whole rate, so
that all rows move at every step. Ours; no paper's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

ROUNDING = 1e-6
"""Differences within a row up to this share of its largest entry are taken for rounding."""


def steepest(
    gradient: Tensor, allowed: Tensor, moments: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The direction to step against, and the new moments.

    The simplex takes no notice of a constant added to a row, so each row is centered before it is
    divided by its largest absolute value. Rows without any difference stay 0.

    Args:
        gradient: `[n, V]`, 0 on forbidden ids.
        allowed: `[V]` bool.
        moments: `first` of the step before; empty at the start.
    """
    first = 0.9 * moments.get("first", torch.zeros_like(gradient)) + 0.1 * gradient
    mean = first.sum(-1, keepdim=True) / allowed.sum().clamp_min(1)
    centered = (first - mean).masked_fill(~allowed, 0.0)
    largest = centered.abs().amax(-1, keepdim=True)
    differ = largest > ROUNDING * first.abs().amax(-1, keepdim=True)
    return torch.where(differ, centered / largest, 0.0), {"first": first}
