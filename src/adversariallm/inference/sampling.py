"""The choice of the next id from one row of logits: filters in float32, draws by position.

A row is handled alone, so its outcome cannot depend on its batch. Nothing here keeps state.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng

NUCLEUS_SHORTLIST = 512
NEG_INF = float("-inf")


def restrict(
    logits: torch.Tensor, masks: Iterable[torch.Tensor | None], forbidden: Iterable[int]
) -> torch.Tensor:
    """A copy of `logits` `[V]` with everything outside the masks, and the forbidden ids, at -inf.

    A mask shorter than V allows nothing beyond its end.
    """
    out = logits.clone()
    for mask in masks:
        if mask is not None:
            size = min(mask.shape[0], out.shape[0])
            out[:size].masked_fill_(~mask[:size].to(out.device), NEG_INF)
            out[size:] = NEG_INF
    for token in forbidden:
        if token < out.shape[0]:
            out[token] = NEG_INF
    return out


def filtered(logits: torch.Tensor, options: GenerationConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids that stay after temperature, top-k, top-p and min-p, with float64 probabilities.

    Args:
        logits: `[V]` float32.
        options: `temperature` above 0.

    Returns:
        Ids and their probabilities, which sum to 1; ids in vocabulary order where no filter is
        active, else by falling logit (ties by lowest id).
    """
    scaled = logits.float() / options.temperature
    full_mass = options.top_k is None or options.top_k >= scaled.shape[0]
    if not full_mass:
        ids = _largest(scaled, options.top_k or 1)
    elif options.top_p < 1:
        ids = _nucleus_ids(scaled, options.top_p)
    else:
        ids = torch.arange(scaled.shape[0], device=scaled.device)
    # top-p is a share of what top-k left
    probs = torch.softmax(scaled if full_mass else scaled[ids], dim=-1, dtype=torch.float64)
    probs = probs[ids] if full_mass else probs
    if options.top_p < 1:
        keep = max(1, int((probs.cumsum(0) - probs < options.top_p).sum()))
        ids, probs = ids[:keep], probs[:keep]
    if options.min_p > 0:
        kept = probs >= options.min_p * probs.max()
        ids, probs = ids[kept], probs[kept]
    return ids, probs / probs.sum()


def _largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest scores, by falling score, ties by lowest id."""
    bound = torch.topk(scores, count, sorted=False).values.min()
    ids = torch.nonzero(scores >= bound)[:, 0]
    order = torch.sort(scores[ids], descending=True, stable=True).indices
    return ids[order[:count]]


def _nucleus_ids(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """By falling score, enough ids to hold `top_p` of the mass (usually far fewer than all)."""
    if scores.shape[0] > NUCLEUS_SHORTLIST:
        ids = _largest(scores, NUCLEUS_SHORTLIST)
        if float(torch.softmax(scores, dim=-1, dtype=torch.float64)[ids].sum()) > top_p:
            return ids
    return torch.sort(scores, descending=True, stable=True).indices


def choose(logits: torch.Tensor, options: GenerationConfig, rng: Rng | None, position: int) -> int:
    """The next id.

    Args:
        logits: `[V]` float32, already restricted.
        options: temperature and filters; temperature 0 takes the arg-max, ties by lowest id.
        rng: the sample's stream.
        position: index of the id among the generated ones; keys the draw.
    """
    if options.temperature == 0:
        return int(torch.argmax(logits))
    if rng is None:
        raise ValueError("sampling needs a stream")
    ids, probs = filtered(logits, options)
    bound = rng.uniform(position)
    at = int(
        torch.searchsorted(probs.cumsum(0), torch.tensor(bound, device=probs.device), right=True)
    )
    return int(ids[min(at, len(ids) - 1)])
