"""Losses, next-token logits and gradients against uncached forward passes of the same model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from adversariallm.core.errors import ContextLengthError
from adversariallm.inference import (
    SAFE_POLICY,
    Engine,
    Prefix,
    candidate_losses,
    losses,
    token_gradients,
)
from adversariallm.inference.scoring import agreement, consensus

from .conftest import ARCHITECTURES, VOCABULARY, build, random_ids

Engines = Callable[..., Engine]
PREFIX, SLOT, TAIL = random_ids([37, 8, 4], seed=1)
TARGETS = random_ids([6, 1, 9], seed=2)


def candidates(count: int = 9) -> list[tuple[int, ...]]:
    """The slot with one id changed, and two of other lengths."""
    out = []
    for i in range(count):
        ids = list(SLOT)
        ids[i % len(ids)] = 3 + (ids[i % len(ids)] + 17) % (VOCABULARY - 3)
        out.append((*ids, *TAIL))
    return [*out, *random_ids([2, 60], seed=3)]


def uncached(model: Any, ids: Any, target: Any) -> torch.Tensor:
    """Target logits of one plain forward pass."""
    tokens = torch.tensor([[*ids, *target]])
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0].float()
    return logits[len(ids) - 1 : -1]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_losses_are_those_of_an_uncached_forward(engines: Engines, name: str) -> None:
    engine = engines(name)
    rows = candidates()
    targets = [TARGETS[i % 3] for i in range(len(rows))]
    found = engine.losses(engine.prefix(PREFIX), rows, targets)
    for i, (row, target) in enumerate(zip(rows, targets, strict=True)):
        logits = uncached(engine.forward.model, (*PREFIX, *row), target)
        nll = F.cross_entropy(logits, torch.tensor(target), reduction="none")
        torch.testing.assert_close(found.per_token[i], nll, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.loss[i], nll.mean(), rtol=1e-4, atol=1e-4)
        assert bool(found.matches[i]) == bool((logits.argmax(-1) == torch.tensor(target)).all())
    assert found.loss.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral"])
def test_losses_do_not_depend_on_chunks_companions_or_order(
    engines: Engines, name: str, dtype: torch.dtype
) -> None:
    engine = engines(name, dtype)
    prefix, rows = engine.prefix(PREFIX), candidates()
    targets = [TARGETS[i % 3] for i in range(len(rows))]
    expected = engine.losses(prefix, rows, targets).loss
    for chunk in (1, 2, 5):
        assert torch.equal(engine.losses(prefix, rows, targets, chunk=chunk).loss, expected)
    back = engine.losses(prefix, rows[::-1], targets[::-1]).loss
    assert torch.equal(back.flip(0), expected)
    single = [engine.losses(prefix, [r], [t]).loss for r, t in zip(rows, targets, strict=True)]
    assert torch.equal(torch.cat(single), expected)


def test_the_cost_is_useful_work_whatever_was_really_shared(engines: Engines) -> None:
    engine = engines("llama")
    prefix = engine.prefix(PREFIX)
    rows = candidates()[:9]
    targets = [TARGETS[0]] * 9
    found = engine.losses(prefix, rows, targets).work
    length = len(rows[0]) + len(TARGETS[0]) - 1
    assert (found.usage.queries, found.usage.tokens_processed) == (9, 9 * length)
    assert found.usage.tokens_cached == 9 * len(PREFIX)
    assert found.usage.flops == 9 * engine.arch.forward(length, len(PREFIX), len(TARGETS[0]))
    assert found.shared == prefix.usage and found.shared_key == prefix.key
    assert found.shared.flops == engine.arch.forward(len(PREFIX), 0, 0)
    single = engine.losses(prefix, rows, targets, chunk=1).work
    assert single.usage == found.usage
    assert engine.losses(Prefix(), rows, targets).work.shared_key is None


def test_many_near_equal_candidates_have_distinct_float32_losses(engines: Engines) -> None:
    engine = engines("llama", torch.bfloat16)
    rows = [(*SLOT[:-1], i, *TAIL) for i in range(3, 67)]
    found = engine.losses(engine.prefix(PREFIX), rows, [TARGETS[2]] * len(rows)).loss
    assert len(set(found.tolist())) > 0.9 * len(rows)


def test_next_logits_are_those_after_the_last_id(engines: Engines) -> None:
    engine = engines("gemma3")
    rows = random_ids([1, 5, 33])
    found = engine.next_logits(engine.prefix(PREFIX), rows)
    for row, logits in zip(rows, found.logits, strict=True):
        expected = uncached(engine.forward.model, (*PREFIX, *row), (1,))[0]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert found.work.usage.queries == 3


def test_soft_losses_of_embedded_ids_equal_losses(engines: Engines) -> None:
    engine = engines("gemma3")
    rows = random_ids([5, 50, 12])
    targets = [TARGETS[0], TARGETS[1], TARGETS[2]]
    hard = engine.losses(Prefix(), rows, targets).loss
    soft = engine.soft_losses([engine.embed(r) for r in rows], targets).loss
    assert torch.equal(soft, hard)


def test_bad_input_is_refused(engines: Engines) -> None:
    engine = engines("llama")
    with pytest.raises(ValueError, match="target is empty"):
        engine.losses(Prefix(), [(1,)], [()])
    with pytest.raises(ValueError, match="candidate is empty"):
        engine.losses(engine.prefix((1, 2)), [()], [(1,)])
    with pytest.raises(ContextLengthError, match="do not fit"):
        engine.losses(Prefix(), random_ids([engine.context_length]), [(1, 2)])
    with pytest.raises(ValueError, match="2 vectors for 1 slot"):
        engine.gradient(Prefix(), (1, 2), (1,), (3,), slot_embeddings=torch.zeros(2, 48))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_token_scores_equal_the_gradient_of_a_one_hot_leaf(engines: Engines, name: str) -> None:
    engine = engines(name)
    model = engine.forward.model
    ids, target = (*SLOT, *TAIL), TARGETS[0]
    slot = [0, 2, 7]
    embedding = model.get_input_embeddings()
    tokens = torch.tensor([*PREFIX, *ids, *target])
    leaf = F.one_hot(tokens[[len(PREFIX) + s for s in slot]], VOCABULARY).float()
    leaf.requires_grad_(True)
    matrix = embedding(torch.arange(VOCABULARY)).detach()
    at = torch.tensor([len(PREFIX) + s for s in slot])
    inputs = embedding(tokens).detach().index_copy(0, at, leaf @ matrix)[None]
    logits = model(inputs_embeds=inputs, use_cache=False).logits[0, -len(target) - 1 : -1]
    loss = F.cross_entropy(logits.float(), torch.tensor(target))
    (expected,) = torch.autograd.grad(loss, leaf)

    found = engine.gradient(engine.prefix(PREFIX), ids, slot, target)
    assert found.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    scores = engine.token_scores(found.slot)
    assert float((scores - expected).abs().max() / expected.abs().max()) < 1e-3
    plain, loss_again = token_gradients(
        engine, (*PREFIX, *ids), [len(PREFIX) + s for s in slot], target
    )
    assert torch.equal(plain, scores) and loss_again == found.loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradients_loss_is_the_candidates_loss_bit_for_bit(
    engines: Engines, dtype: torch.dtype
) -> None:
    engine = engines("gemma2", dtype)
    prefix, ids = engine.prefix(PREFIX), (*SLOT, *TAIL)
    found = engine.gradient(prefix, ids, range(8), TARGETS[0])
    assert found.loss == float(engine.losses(prefix, [ids], [TARGETS[0]]).loss[0])
    assert found.finite and found.slot.dtype == torch.float32


def test_free_embeddings_have_the_gradient_of_finite_differences() -> None:
    engine = Engine(build("gemma3", torch.float64), policy=SAFE_POLICY)
    prefix, ids = engine.prefix(PREFIX[:5]), (*SLOT, *TAIL)
    free = engine.embed(SLOT[:2]) + 0.1
    found = engine.gradient(prefix, ids, (0, 1), TARGETS[0], slot_embeddings=free)

    def loss_at(vectors: torch.Tensor) -> float:
        rows = torch.cat([vectors, engine.embed(ids[2:])])
        return float(engine.soft_losses([rows], [TARGETS[0]], prefix=prefix).loss[0])

    direction = torch.randn(free.shape, generator=torch.Generator().manual_seed(0))
    step = 3e-2
    slope = (loss_at(free + step * direction) - loss_at(free - step * direction)) / (2 * step)
    assert float((found.slot * direction).sum()) == pytest.approx(slope, rel=2e-2)


def test_a_non_finite_gradient_is_reported(engines: Engines) -> None:
    engine = engines("llama")
    free = torch.full((1, 48), float("inf"))
    found = engine.gradient(Prefix(), SLOT, (0,), TARGETS[0], slot_embeddings=free)
    assert not found.finite


def test_the_prefix_is_never_changed_by_its_users(engines: Engines) -> None:
    engine = engines("mistral_window")
    prefix = engine.prefix(PREFIX)
    before = [t.clone() for t in (*prefix.keys, *prefix.values)]
    rows = candidates()
    first = engine.losses(prefix, rows, [TARGETS[0]] * len(rows)).loss
    engine.gradient(prefix, SLOT, (1,), TARGETS[0])
    again = engine.losses(prefix, rows, [TARGETS[0]] * len(rows)).loss
    assert torch.equal(first, again)
    after = (*prefix.keys, *prefix.values)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not any(t.requires_grad for t in after)


def test_an_objective_sees_one_candidate_at_a_time(engines: Engines) -> None:
    engine = engines("llama")
    shapes = []

    def objective(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        shapes.append((tuple(logits.shape), tuple(targets.shape)))
        return losses.carlini_wagner()(logits, targets)

    rows = candidates()
    found = candidate_losses(engine, PREFIX, rows, TARGETS[0], objective)
    assert set(shapes) == {((1, 6, VOCABULARY), (1, 6))}
    logits = uncached(engine.forward.model, (*PREFIX, *rows[0]), TARGETS[0])[None]
    expected = losses.carlini_wagner()(logits, torch.tensor([TARGETS[0]]))[0]
    torch.testing.assert_close(found.loss[0], expected, rtol=1e-4, atol=1e-4)


def test_the_consensus_is_the_most_frequent_id_at_each_position() -> None:
    assert consensus([(1, 2, 3), (1, 5, 3, 4), (7, 2, 3)]) == (1, 2, 3)
    assert consensus([(), (1,)]) == ()
    assert agreement((1, 2, 3), (1, 2, 4)) == 2
    assert agreement((1,), (1, 2)) == 1
