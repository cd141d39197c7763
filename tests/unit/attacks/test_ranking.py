"""Order of losses: ties, NaN, infinities."""

from __future__ import annotations

import math

import torch

from adversariallm.attacks._kit.ranking import lowest, ranked


def test_equal_losses_keep_their_order_and_nan_comes_last() -> None:
    losses = torch.tensor([math.nan, 2.0, math.inf, 1.0, 1.0, -math.inf])
    assert ranked(losses).tolist() == [5, 3, 4, 1, 2, 0]
    assert lowest(losses) == 5 and lowest(losses[:5]) == 3


def test_without_a_number_nothing_is_lowest() -> None:
    assert lowest(torch.tensor([math.nan, math.nan])) is None
    assert lowest(torch.tensor([])) is None
    assert lowest(torch.tensor([math.nan, math.inf])) == 1
