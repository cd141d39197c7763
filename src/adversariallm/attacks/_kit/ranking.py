"""Candidates in the order of their losses; a loss that is no number never wins."""

from __future__ import annotations

import torch
from torch import Tensor

NOT_A_NUMBER = "loss_not_a_number"
"""Flag of a step where some candidate's loss was NaN."""


def ranked(losses_W: Tensor) -> Tensor:
    """`[W]` indices from the lowest loss on; equal losses in their order, NaN last."""
    return torch.sort(losses_W, stable=True).indices


def lowest(losses_W: Tensor) -> int | None:
    """Index of the lowest loss, the first of equal ones; None where no loss is a number."""
    if not len(losses_W):
        return None
    winner = int(ranked(losses_W)[0])
    return None if bool(losses_W[winner].isnan()) else winner
