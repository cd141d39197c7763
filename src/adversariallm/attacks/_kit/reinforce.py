"""Token-level rewards and weights of REINFORCE-GCG: pure functions, so that a table can check them.

Shape legend: S samples, T positions. Source: Geisler et al. 2025 (arXiv 2502.17254), section 4 and
appendix; sigeisler/reinforce-attacks-llms for details that the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

EPSILON = 1e-6  # keeps the normalization of weights defined when all rewards are equal


def token_rewards(
    samples: Sequence[Sequence[int]], rewards: Sequence[Mapping[int, float]], length: int
) -> Tensor:
    """`[S, T]` reward of each token.

    A token gets the best reward of any judged prefix that ends at or after it; samples that share
    their beginning share the best such reward for as long as they agree.

    Args:
        samples: ids of each sample, not empty.
        rewards: for each sample, reward by judged prefix length; the whole length must be there.
        length: T, positions beyond a sample's end repeat its last value.
    """
    rows = torch.full((len(samples), length), -torch.inf)
    for s, (ids, known) in enumerate(zip(samples, rewards, strict=True)):
        for prefix, reward in known.items():
            at = min(prefix, len(ids), length) - 1
            rows[s, at] = max(float(rows[s, at]), reward)
        end = min(len(ids), length)
        rows[s, :end] = rows[s, :end].flip(0).cummax(0).values.flip(0)
        rows[s, end:] = rows[s, end - 1]
    shared = rows.clone()
    for t in range(length):
        tokens = [ids[t] if t < len(ids) else -1 - s for s, ids in enumerate(samples)]
        for s, token in enumerate(tokens):
            same = [rows[o, t] for o, other in enumerate(tokens) if other == token]
            shared[s, t] = torch.stack(same).max()
    return shared.cummin(1).values


def leave_one_out(rewards_ST: Tensor, baseline: float) -> Tensor:
    """`[S, T]` weights: reward less the mean of the other samples and a dummy sample.

    With n = S + 1: w = (n r - (sum r + b)) / ((n - 1) n), scaled so that the absolute weights of
    each position sum to one. Negative weights push away from a sample.
    """
    n = len(rewards_ST) + 1
    total = rewards_ST.sum(0, keepdim=True) + baseline
    weights = (n * rewards_ST - total) / ((n - 1) * n) + EPSILON
    return weights / weights.abs().sum(0, keepdim=True)


def position_weights(ids: Sequence[int], length: int, end: int | None) -> Tensor:
    """`[len(ids)]` weights falling linearly from 5 to 1 over `length` positions, summing to one.

    Args:
        ids: the sample.
        length: number of positions over which the weights fall.
        end: positions from this one on count nothing; None counts all.
    """
    weights = torch.linspace(5, 1, max(length, len(ids)))[: len(ids)].clone()
    if end is not None:
        weights[end:] = 0
    return weights / weights.sum()


def selection_weights(names: Sequence[str], greedy_reward: float) -> Tensor:
    """`[S]` weights of the deterministic samples when candidates are compared.

    The greedy sample counts double in so far as it is already rewarded: R m2 + (1 - R) uniform.
    """
    uniform = torch.ones(len(names)) / len(names)
    double = torch.tensor([2.0 if name == "greedy" else 1.0 for name in names])
    return greedy_reward * double / double.sum() + (1 - greedy_reward) * uniform
