"""Projections onto balls and simplices, row by row, in float32.

Pure functions of `[n, d]` or `[n, V]` tensors; each returns the nearest point of its set unless its
docstring says otherwise. Sources: Duchi et al. 2008 (ICML) for the sort method on simplex and l1
ball; Geisler et al. 2024 (arXiv 2402.09154), appendix, for the entropy projection.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l2", "linf", "l1", "none"]
RANKED = 1024
"""Entries of a row that are ranked at first; all are where that many stay positive."""


def l2_ball(rows: Tensor, radius: float) -> Tensor:
    """Rows scaled back to Euclidean norm `radius` where they exceed it."""
    norms = rows.norm(dim=-1, keepdim=True)
    scale: Tensor = (radius / norms.clamp_min(torch.finfo(rows.dtype).tiny)).clamp_max(1.0)
    return rows * scale


def linf_ball(rows: Tensor, radius: float) -> Tensor:
    """Entries clipped to `[-radius, radius]`."""
    return rows.clamp(-radius, radius)


def simplex(rows: Tensor, total: float = 1.0) -> Tensor:
    """Nearest rows with non-negative entries that sum to `total`."""
    width = rows.shape[-1]
    # few entries of a row over a vocabulary stay positive, and ranking the rest would cost most
    for ranks in (min(RANKED, width), width):
        ranked = rows.topk(ranks, dim=-1).values
        excess = ranked.cumsum(-1) - total
        counts = torch.arange(1, ranks + 1, device=rows.device, dtype=rows.dtype)
        kept = (ranked * counts > excess).sum(-1, keepdim=True)
        if ranks == width or bool((kept < ranks).all()):
            break
    kept = kept.clamp_min(1)
    threshold = excess.gather(-1, kept - 1) / kept
    return (rows - threshold).clamp_min(0)


def l1_ball(rows: Tensor, radius: float) -> Tensor:
    """Nearest rows whose absolute entries sum to at most `radius`."""
    outside = rows.abs().sum(-1, keepdim=True) > radius
    if radius <= 0:
        return torch.zeros_like(rows)
    return torch.where(outside, rows.sign() * simplex(rows.abs(), radius), rows)


def ball(rows: Tensor, norm: Norm, radius: float, *, whole: bool = False) -> Tensor:
    """Rows (or, with `whole`, all rows together as one vector) inside a ball.

    Args:
        rows: `[n, d]`.
        norm: which norm bounds them; `none` leaves them alone.
        radius: bound, not negative.
        whole: bound the norm of the whole slot instead of each row's.
    """
    if norm == "none":
        return rows
    flat = rows.reshape(1, -1) if whole else rows
    projected = {"l2": l2_ball, "linf": linf_ball, "l1": l1_ball}[norm](flat, radius)
    return projected.reshape(rows.shape)


def norm_of(rows: Tensor, norm: Norm, *, whole: bool = False) -> Tensor:
    """`[n]` norms of the rows, or `[1]` of the whole slot; the Euclidean norm for `none`."""
    flat = rows.reshape(1, -1) if whole else rows
    order = {"l2": 2.0, "linf": torch.inf, "l1": 1.0, "none": 2.0}[norm]
    norms: Tensor = torch.linalg.vector_norm(flat, ord=order, dim=-1)
    return norms


def lp_sphere(rows: Tensor, power: float) -> Tensor:
    """Non-negative rows over their p-norm, zero rows uniform; not the nearest point."""
    positive = rows.clamp_min(0)
    norms = torch.linalg.vector_norm(positive, ord=power, dim=-1, keepdim=True)
    uniform = torch.full_like(rows, rows.shape[-1] ** (-1 / power))
    return torch.where(norms > 0, positive / norms.clamp_min(torch.finfo(rows.dtype).tiny), uniform)


def tsallis2(rows: Tensor) -> Tensor:
    """`[n]` Tsallis entropy, q = 2 (Gini index), of probability rows."""
    return 1 - (rows * rows).sum(-1)


def entropy_projection(rows: Tensor, factor: float) -> Tensor:
    """Simplex rows pushed towards corners until their entropy is small enough.

    On the support of a row, of size d, the target entropy is (1 - factor) (d - 1) / d. A row with
    more entropy moves away from the support's center to the sphere of that entropy, and back to
    the simplex. Rows with one supporting entry stay. Source: arXiv 2402.09154, appendix.

    Args:
        rows: `[n, V]` on the simplex.
        factor: 0 leaves every row, 1 asks for one-hot rows.
    """
    support = rows > 0
    d = support.sum(-1, keepdim=True).to(rows.dtype)
    center = support.to(rows.dtype) / d
    target = (1 - factor) * (d - 1) / d
    # squared distance of the entropy sphere's points from the center: 1 - target - 1/d
    radius = (1 - target - 1 / d).clamp_min(0).sqrt()
    away = (rows - center) * support
    distance = away.norm(dim=-1, keepdim=True)
    inside = (distance < radius) & (d > 1) & (distance > 0)
    pushed = center + away * (radius / distance.clamp_min(torch.finfo(rows.dtype).tiny))
    return torch.where(inside, simplex(pushed), rows)
