"""Gradients of a loss with respect to the slot's embedding vectors, weights frozen.

The gradient with respect to one-hot rows follows from it and the embedding matrix
(`Engine.token_scores`); no one-hot forward is ever run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F

from adversariallm.core.budget import Usage
from adversariallm.core.protocols import Gradient, Objective, Outputs, OutputsObjective, Work
from adversariallm.inference import losses
from adversariallm.inference.cache import SharedPlan, key_width
from adversariallm.inference.flops import Architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.hidden import recording
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
            products=policy.filling,
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


class SoftPass:
    """Forward and backward passes over embedding rows, for objectives of any position's outputs.

    Nothing is shared between calls. Call inside `Engine.session`.
    """

    def __init__(
        self,
        forward: Forward,
        arch: Architecture,
        policy: RowPolicy,
        layers: list[torch.nn.Module] | None,
    ) -> None:
        """Record the residual stream after each of `layers`; None records nothing."""
        self.forward, self.arch, self.policy, self.layers = forward, arch, policy, layers

    def outputs(self, rows: torch.Tensor, positions: Sequence[int]) -> Outputs:
        """Logits and hidden states of `[P, d]` rows at `positions`, without gradients."""
        with torch.no_grad():
            logits, hidden = self._run(rows.to(self.forward.device).float(), positions)
        work = self._work(len(rows), len(positions), backward=False)
        return Outputs(logits.cpu(), None if hidden is None else hidden.cpu(), work)

    def gradient(
        self,
        rows: torch.Tensor,
        slot: Sequence[int],
        positions: Sequence[int],
        objective: OutputsObjective,
    ) -> Gradient:
        """Value of an objective, and its `[n, d]` gradient with respect to `rows[slot]`."""
        rows = rows.to(self.forward.device).float().detach()
        index = torch.tensor(list(slot), device=rows.device)
        with torch.enable_grad():
            leaf = rows[index].clone().requires_grad_(True)
            logits, hidden = self._run(rows.index_copy(0, index, leaf), positions)
            loss = objective(logits, hidden)
        (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        gradient = torch.zeros_like(leaf) if slope is None else slope
        work = self._work(len(rows), len(positions), backward=True)
        finite = bool(torch.isfinite(gradient).all())
        return Gradient(gradient, float(loss.detach()), finite, work)

    def _run(
        self, rows: torch.Tensor, positions: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`[N, V]` logits and `[L, N, d]` residual stream after each layer, float32."""
        length = len(rows)
        padding = -length % self.forward.step
        inputs = F.pad(rows.to(self.forward.dtype), (0, 0, 0, padding))[None]
        at = torch.arange(length + padding)[None]
        watched: AbstractContextManager[dict[int, torch.Tensor]] = (
            recording(self.layers) if self.layers else nullcontext({})
        )
        with watched as seen:
            logits = self.forward(
                SharedPlan(Prefix(), at, [key_width(length)]),
                at.clamp(max=self.forward.context_length - 1),
                embeddings=inputs,
                pick=([0] * len(positions), list(positions)),
                products=self.policy.filling,
            ).float()
        if not self.layers:
            return logits, None
        picked = list(positions)
        streams = [seen[i][0, picked].to(logits) for i in range(1, len(self.layers) + 1)]
        return logits, torch.stack(streams)

    def _work(self, length: int, count: int, *, backward: bool) -> Work:
        usage: Usage = self.arch.usage(length, 0, count, backward=backward)
        products = padded_rows(length, self.policy.prefill)
        heads = padded_rows(count, self.policy.prefill)
        forward = self.arch.products(products) + self.arch.projection(heads)
        attention = self.arch.attention(length, 0, square=True)
        times = (2, 3) if backward else (1, 1)
        return Work(usage, executed=times[0] * forward + times[1] * attention)
