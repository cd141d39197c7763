"""Losses against hand-derived values, finite differences of definitions, and independence."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adversariallm.core.protocols import Objective
from adversariallm.inference import losses

ALLOWED = torch.tensor([True, True, False, True])
LOGITS = torch.tensor([[[0.0, 1.0, 2.0, 0.0], [1.0, 0.0, 0.0, 3.0]]])
TARGETS = torch.tensor([[2, 0]])
UNIFORM = torch.zeros(1, 2, 4)
ALL: dict[str, Objective] = {
    "cross_entropy": losses.cross_entropy,
    "carlini_wagner": losses.carlini_wagner(),
    "mellowmax": losses.mellowmax(),
    "token_weighted": losses.token_weighted(torch.tensor([0.3, 0.7])),
    "entropy_first": losses.entropy_first,
    "entropy_all": losses.entropy_all,
    "entropy_adaptive": losses.entropy_adaptive,
    "entropy_allowed": losses.entropy_allowed(ALLOWED),
    "max_logit": losses.max_logit,
    "max_probability": losses.max_probability,
    "kl_uniform_model": losses.kl_uniform_model(ALLOWED),
    "kl_model_uniform": losses.kl_model_uniform(ALLOWED),
}


def by_hand() -> dict[str, float]:
    """The same numbers from the formulas, in plain Python."""
    rows = LOGITS[0].tolist()
    total = [sum(math.exp(x) for x in row) for row in rows]
    probs = [[math.exp(x) / z for x in row] for row, z in zip(rows, total, strict=True)]
    nll = [-math.log(probs[0][2]), -math.log(probs[1][0])]
    negative_entropy = [sum(p * math.log(p) for p in row) for row in probs]
    inside = [probs[0][i] for i in (0, 1, 3)]
    kept = [p / sum(inside) for p in inside]
    entropy_kept = sum(p * math.log(p) for p in kept) + math.log(3)
    return {
        "cross_entropy": sum(nll) / 2,
        "carlini_wagner": (max(1.0 - 2.0, -1e-3) + (3.0 - 1.0)) / 2,
        "mellowmax": math.log(math.exp(-2.0) + math.exp(-1.0)) - math.log(2),
        "token_weighted": 0.3 * nll[0] + 0.7 * nll[1],
        "entropy_first": negative_entropy[0] + math.log(4),
        "entropy_all": sum(negative_entropy) / 2 + math.log(4),
        "entropy_adaptive": negative_entropy[0] - negative_entropy[1],
        "entropy_allowed": entropy_kept + probs[0][2],
        "max_logit": 2.0,
        "max_probability": probs[0][2],
        "kl_uniform_model": sum(math.log((1 / 3) / p) / 3 for p in inside),
        "kl_model_uniform": entropy_kept,
    }


@pytest.mark.parametrize("name", ALL)
def test_value_equals_the_formula(name: str) -> None:
    assert float(ALL[name](LOGITS, TARGETS)[0]) == pytest.approx(by_hand()[name], abs=1e-6)


@pytest.mark.parametrize("name", ALL)
@given(st.integers(0, 10_000))
def test_a_candidates_loss_does_not_see_its_neighbors(name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 2, 4, generator=generator)
    targets = torch.randint(0, 4, (3, 2), generator=generator)
    together = ALL[name](logits, targets)
    alone = torch.cat([ALL[name](logits[i : i + 1], targets[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone)


def test_entropy_and_divergence_losses_are_zero_at_the_uniform_distribution() -> None:
    targets = torch.zeros(1, 2, dtype=torch.long)
    for name in ("entropy_first", "entropy_all", "kl_model_uniform"):
        assert float(ALL[name](UNIFORM, targets)[0]) == pytest.approx(0.0, abs=1e-6)
    # a quarter of the mass lies on the id that is not allowed
    assert float(ALL["entropy_allowed"](UNIFORM, targets)[0]) == pytest.approx(0.25, abs=1e-6)


def test_mellowmax_with_large_alpha_is_the_maximum() -> None:
    value = losses.mellowmax(alpha=500.0)(LOGITS, TARGETS)
    assert float(value[0]) == pytest.approx(-1.0, abs=1e-2)


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_finite_even_for_impossible_ids(name: str) -> None:
    logits = LOGITS.clone()
    logits[0, 0, 0] = -1e4
    logits.requires_grad_(True)
    (gradient,) = torch.autograd.grad(ALL[name](logits, TARGETS).sum(), logits)
    assert bool(torch.isfinite(gradient).all())


def test_greedy_match_needs_every_position() -> None:
    logits = torch.zeros(2, 2, 3)
    logits[:, 0, 1] = 1
    logits[0, 1, 2] = 1
    assert losses.greedy_match(logits, torch.tensor([[1, 2], [1, 2]])).tolist() == [True, False]
