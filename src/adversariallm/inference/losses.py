"""Losses of target logits: pure functions, float32, one number per candidate.

An objective maps float32 logits `[W, T, V]` at the positions that predict the target, and target
ids `[W, T]`, to `[W]`; no candidate's loss depends on another's (white-box specification 2.1).
"""

from __future__ import annotations

import math

import torch

from adversariallm.core.protocols import Objective


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood `[W, T]` of each target id."""
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return torch.logsumexp(logits, dim=-1) - picked


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of the target, the loss every attack reports."""
    return token_nll(logits, targets).mean(dim=-1)


def greedy_match(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`[W]` bool: every target id is the arg-max."""
    return (logits.argmax(dim=-1) == targets).all(dim=-1)


def carlini_wagner(kappa: float = 1e-3) -> Objective:
    """Mean over positions of max(best other logit minus target logit, -kappa).

    Source: Carlini and Wagner 2017, arXiv 1608.04644, applied per target position.
    """

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        index = targets[..., None]
        picked = logits.gather(-1, index)[..., 0]
        other = logits.scatter(-1, index, float("-inf")).amax(dim=-1)
        return (other - picked).clamp(min=-kappa).mean(dim=-1)

    return loss


def mellowmax(alpha: float = 1.0) -> Objective:
    """Soft maximum of the negated raw target logits; not scale-free.

    Source: Asadi and Littman 2017, arXiv 1612.05628, as nanoGCG applies it to target logits.
    """

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        picked = logits.gather(-1, targets[..., None])[..., 0]
        total = torch.logsumexp(-alpha * picked, dim=-1)
        return (total - math.log(targets.shape[-1])) / alpha

    return loss


def token_weighted(weights: torch.Tensor) -> Objective:
    """Sum over positions of weight times negative log-likelihood; `weights` is `[T]`.

    Source: Geisler et al. 2025, arXiv 2502.17254 (REINFORCE weights).
    """

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (weights.to(logits) * token_nll(logits, targets)).sum(dim=-1)

    return loss


def _negative_entropy(logits: torch.Tensor) -> torch.Tensor:
    log_probs = torch.log_softmax(logits, dim=-1)
    return (log_probs.exp() * log_probs).nan_to_num(0.0).sum(dim=-1)


def entropy_first(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Logarithm of V minus the entropy of the first position: 0 at the uniform distribution."""
    del targets
    return _negative_entropy(logits[:, 0]) + math.log(logits.shape[-1])


def entropy_all(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Logarithm of V minus the mean entropy of all target positions."""
    del targets
    return _negative_entropy(logits).mean(dim=-1) + math.log(logits.shape[-1])


def entropy_adaptive(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """High entropy at the first position, low entropy at the later ones.

    The difference of the first position's negative entropy and the later positions' mean.
    """
    del targets
    first = _negative_entropy(logits[:, 0])
    if logits.shape[1] == 1:
        return first
    return first - _negative_entropy(logits[:, 1:]).mean(dim=-1)


def entropy_allowed(allowed: torch.Tensor) -> Objective:
    """Entropy of the first position over the allowed ids, plus the mass on all others.

    The entropy is that of the distribution renormalized on `allowed` `[V]` bool; 0 is best.
    """

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        del targets
        mask = allowed.to(logits.device)
        first = logits[:, 0]
        inside = first.masked_fill(~mask, float("-inf"))
        mass = torch.exp(torch.logsumexp(inside, dim=-1) - torch.logsumexp(first, dim=-1))
        kept = first[:, mask]
        return _negative_entropy(kept) + math.log(kept.shape[-1]) + (1 - mass)

    return loss


def max_logit(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Largest logit of the first position."""
    del targets
    return logits[:, 0].amax(dim=-1)


def max_probability(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Largest probability of the first position."""
    del targets
    return torch.softmax(logits[:, 0], dim=-1).amax(dim=-1)


def kl_uniform_model(allowed: torch.Tensor) -> Objective:
    """KL(uniform over the allowed ids || model) at the first position."""

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        del targets
        mask = allowed.to(logits.device)
        log_probs = torch.log_softmax(logits[:, 0], dim=-1)[:, mask]
        return -log_probs.mean(dim=-1) - math.log(log_probs.shape[-1])

    return loss


def kl_model_uniform(allowed: torch.Tensor) -> Objective:
    """KL(model renormalized on the allowed ids || uniform over them) at the first position."""

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        del targets
        kept = logits[:, 0][:, allowed.to(logits.device)]
        return _negative_entropy(kept) + math.log(kept.shape[-1])

    return loss
