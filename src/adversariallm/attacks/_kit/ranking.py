"""Candidates in the order of their losses; a loss that is no number never wins."""

from __future__ import annotations

import torch
from torch import Tensor

NOT_A_NUMBER = "loss_not_a_number"
"""Flag of a step where some candidate's loss was NaN."""


def ranked(losses_W: Tensor) -> Tensor:
    """`[W]` indices from the lowest loss on; equal losses in their order, NaN last."""
    return torch.sort(losses_W, stable=True).indices


def numbers(losses_W: Tensor) -> Tensor:
    """Indices of the losses that are numbers, in the order of `ranked`."""
    return ranked(losses_W)[: int((~losses_W.isnan()).sum())]


def lowest(losses_W: Tensor) -> int | None:
    """Index of the lowest loss, the first of equal ones; None where no loss is a number."""
    order = numbers(losses_W)
    return int(order[0]) if len(order) else None


def nan_flags(losses_W: Tensor) -> tuple[str, ...]:
    """The flag of a step with these losses, where it has one."""
    return (NOT_A_NUMBER,) if bool(losses_W.isnan().any()) else ()
