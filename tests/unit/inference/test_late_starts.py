"""Candidates that share much with the others start late, and are padded past their key width."""

from __future__ import annotations

import pytest
import torch

from adversariallm.core.rng import Rng
from adversariallm.models.tiny import tiny_model


@pytest.mark.parametrize("length", [59, 60, 61, 62])
def test_losses_do_not_depend_on_the_batch_near_a_width_boundary(length: int) -> None:
    model = tiny_model("llama")
    base = torch.randint(10, 400, (length,), generator=Rng.root(0).torch()).tolist()
    inputs = []
    for k in range(12):
        row = list(base)
        row[5 * k % 40 + 10] = 7
        inputs.append(row)
    target = [5, 6, 7]
    together = model.losses(inputs, [target] * 12, shared=8).loss
    alone = torch.cat([model.losses([row], [target], shared=8).loss for row in inputs])
    assert torch.equal(together, alone)
