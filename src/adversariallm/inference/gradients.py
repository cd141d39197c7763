"""Gradients of a loss with respect to the slot's embedding vectors, weights frozen.

The gradient with respect to one-hot rows follows from it and the embedding matrix
(`Engine.token_scores`); no one-hot forward is ever run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from adversariallm.core.protocols import Gradient, Objective, Work
from adversariallm.inference import losses
from adversariallm.inference.cache import SharedPlan, key_width
from adversariallm.inference.flops import Architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.numerics import RowPolicy, padded_rows
from adversariallm.inference.prefix import Prefix


def slot_gradient(
    forward: Forward,
    arch: Architecture,
    policy: RowPolicy,
    prefix: Prefix,
    ids: Sequence[int],
    slot: Sequence[int],
    target: Sequence[int],
    objective: Objective | None,
    slot_embeddings: torch.Tensor | None,
) -> Gradient:
    """Loss and `[n, d]` gradient at `slot`; see `Engine.gradient`."""
    device = forward.device
    tokens = torch.tensor([*ids, *target[:-1]], device=device)
    vectors = forward.embedding(tokens).detach().to(forward.dtype)
    index = torch.tensor(list(slot), device=device)
    start = vectors[index] if slot_embeddings is None else slot_embeddings.to(device)
    leaf = start.detach().float().clone().requires_grad_(True)
    count, length = len(target), len(tokens)
    with torch.enable_grad():
        inputs = vectors.index_copy(0, index, leaf.to(forward.dtype))
        padding = -length % forward.step
        inputs = F.pad(inputs, (0, 0, 0, padding))[None]
        positions = torch.arange(len(prefix), len(prefix) + length + padding)[None]
        offsets = list(range(length - count, length))
        logits = forward(
            SharedPlan(prefix, positions, [key_width(len(prefix) + length)]),
            positions.clamp(max=forward.context_length - 1),
            embeddings=inputs,
            pick=([0] * count, offsets),
            tiles=policy.prefill,
        )
        wanted = torch.tensor([list(target)], device=logits.device)
        loss = (objective or losses.cross_entropy)(logits.float()[None], wanted).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    cached = len(prefix)
    products = padded_rows(length, policy.prefill)
    executed = 2 * (arch.products(products) + arch.projection(padded_rows(count, policy.prefill)))
    executed += 3 * arch.attention(length, cached, square=True)
    return Gradient(
        slot=gradient,
        loss=float(loss.detach()),
        finite=bool(torch.isfinite(gradient).all()),
        work=Work(
            usage=arch.usage(length, cached, count, backward=True),
            shared=prefix.usage,
            shared_key=prefix.key if cached else None,
            executed=executed,
        ),
    )
