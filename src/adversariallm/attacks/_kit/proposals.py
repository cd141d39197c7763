"""Candidate proposals for discrete slots: positions, token choices, replacements.

Pure functions of tensors and a generator. Shape legend: W candidates, n slot positions, V rows of
the embedding, r replaced positions. Source: Zou et al. 2023 (arXiv 2307.15043), section 2.2.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

from adversariallm.core.rng import Rng

Positions = Literal["even", "uniform"]


def even_positions(n: int, width: int) -> Tensor:
    """`[W]` positions, candidate j changing position floor(j * n / W): exactly W for every n.

    Source: llm-attacks spreads positions evenly; integer arithmetic avoids its W+1 entries.
    """
    return torch.arange(width, dtype=torch.long) * n // width


def uniform_positions(n: int, width: int, n_replace: int, generator: Generator) -> Tensor:
    """`[W, r]` distinct positions for each candidate, drawn uniformly."""
    if n_replace > n:
        raise ValueError(f"n_replace={n_replace} distinct positions of a slot with {n}")
    return torch.rand(width, n, generator=generator).argsort(dim=1)[:, :n_replace]


def shortlist(scores_nV: Tensor, allowed_V: Tensor, topk: int) -> Tensor:
    """`[n, k]` ids with the most negative score at each position; never a forbidden one.

    `k` is clipped to the number of allowed ids. Equal scores: lowest id first. No score is NaN.
    """
    k = min(topk, int(allowed_V.sum()))
    masked = scores_nV.float().masked_fill(~allowed_V, float("inf"))
    # topk leaves the order of equal scores open, and sorting whole rows takes 40 times longer
    bounds_n1 = torch.topk(masked, k, dim=1, largest=False).values[:, -1:]
    rows = []
    for row_V, within_V in zip(masked, masked <= bounds_n1, strict=True):
        ids = within_V.nonzero().squeeze(1)
        rows.append(ids[torch.sort(row_V[ids], stable=True).indices[:k]])
    return torch.stack(rows)


def replace_from_shortlist(
    slot_n: Tensor, positions_Wr: Tensor, shortlist_nk: Tensor, generator: Generator
) -> Tensor:
    """`[W, n]` copies of the slot, each with its positions redrawn from their shortlists."""
    width, r = positions_Wr.shape
    choice = torch.randint(shortlist_nk.shape[1], (width, r), generator=generator)
    return slot_n.repeat(width, 1).scatter(1, positions_Wr, shortlist_nk[positions_Wr, choice])


def replace_uniformly(
    slot_n: Tensor, positions_Wr: Tensor, allowed_ids: Tensor, generator: Generator
) -> Tensor:
    """`[W, n]` copies of the slot, each with its positions redrawn from all allowed ids."""
    choice = torch.randint(len(allowed_ids), positions_Wr.shape, generator=generator)
    return slot_n.repeat(len(positions_Wr), 1).scatter(1, positions_Wr, allowed_ids[choice])


def replace_each_position(
    slot_n: Tensor, width: int, allowed_ids: Tensor, generator: Generator
) -> Tensor:
    """`[n * (W // n), n]` copies: at every position the same number of distinct allowed ids.

    With `W < n` there are W of them, one id at each of as many positions, drawn uniformly.
    """
    n = len(slot_n)
    per = max(1, min(width // n, len(allowed_ids)))
    positions = list(range(n))
    if width < n:
        positions = torch.randperm(n, generator=generator)[:width].tolist()
    rows = []
    for position in positions:
        drawn = allowed_ids[torch.randperm(len(allowed_ids), generator=generator)[:per]]
        copies = slot_n.repeat(per, 1)
        copies[:, position] = drawn
        rows.append(copies)
    return torch.cat(rows)


def propose(
    slot_n: Tensor,
    scores_nV: Tensor | None,
    allowed_V: Tensor,
    rng: Rng,
    *,
    width: int,
    topk: int,
    n_replace: int = 1,
    positions: Positions = "uniform",
) -> Tensor:
    """`[W, n]` candidates of one GCG step: shortlisted ids, or any allowed id without scores.

    Source: arXiv 2307.15043, Algorithm 1, lines 3 to 7.
    """
    n = len(slot_n)
    r = min(n_replace, n)
    if positions == "even" and r == 1:
        where = even_positions(n, width).unsqueeze(1)
        if width < n:  # else some positions would never be changed, at whatever step
            first = torch.randint(n, (), generator=rng.child("positions").torch())
            where = (where + first) % n
    else:
        where = uniform_positions(n, width, r, rng.child("positions").torch())
    generator = rng.child("token_choice").torch()
    if scores_nV is None:
        return replace_uniformly(slot_n, where, allowed_V.nonzero().squeeze(1), generator)
    return replace_from_shortlist(slot_n, where, shortlist(scores_nV, allowed_V, topk), generator)


def promised_rank(candidates_Wn: Tensor, row: int, scores_nV: Tensor) -> int:
    """How many candidates the gradient promised a lower loss than the one in `row`.

    The promise is the linear one: the sum of the scores of a candidate's ids.
    """
    promised_W = scores_nV.gather(1, candidates_Wn.T).sum(0)
    return int((promised_W < promised_W[row]).sum())


def distinct_multinomial(probs_WV: Tensor, k: int, generator: Generator) -> list[Tensor]:
    """For each row up to `k` distinct ids drawn in proportion; fewer where fewer are possible."""
    out = []
    for row in probs_WV.float():
        possible = int((row > 0).sum())
        out.append(
            torch.multinomial(row, min(k, possible), replacement=False, generator=generator)
            if possible
            else torch.empty(0, dtype=torch.long)
        )
    return out


def without_duplicates(candidates: Tensor, exclude: Tensor | None = None) -> Tensor:
    """The candidates in order, each once, without `exclude`."""
    seen: set[tuple[int, ...]] = set() if exclude is None else {tuple(exclude.tolist())}
    keep = []
    for i, row in enumerate(candidates.tolist()):
        if tuple(row) not in seen:
            seen.add(tuple(row))
            keep.append(i)
    return candidates[keep]
