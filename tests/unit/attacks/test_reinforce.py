"""REINFORCE-GCG's rewards and weights against tables worked out by hand."""

from __future__ import annotations

import pytest
import torch

from adversariallm.attacks._kit import reinforce


def test_a_token_gets_the_best_reward_of_a_judged_beginning_at_or_after_it() -> None:
    table = reinforce.token_rewards([[1, 2, 3, 4]], [{2: 0.6, 4: 0.2}], 4)
    assert table.tolist() == [pytest.approx([0.6, 0.6, 0.2, 0.2])]


def test_samples_share_rewards_only_while_their_beginnings_agree() -> None:
    samples = [[1, 2, 3], [1, 2, 9], [1, 7, 3]]
    rewards = [{3: 0.1}, {3: 0.9}, {3: 0.4}]
    table = reinforce.token_rewards(samples, rewards, 3)
    expected = [[0.9, 0.9, 0.1], [0.9, 0.9, 0.9], [0.9, 0.4, 0.4]]
    # at position 2 samples 0 and 2 carry the same token, but sample 0's running minimum and
    # sample 2's own beginning decide: max(0.1, 0.4) = 0.4 for both, then min with what came before
    expected[0][2] = 0.4
    assert torch.allclose(table, torch.tensor(expected))


def test_shorter_samples_keep_their_last_reward_and_match_nothing_beyond_their_end() -> None:
    table = reinforce.token_rewards([[1], [1, 2, 2]], [{1: 0.3}, {3: 0.8}], 3)
    assert torch.allclose(table, torch.tensor([[0.8, 0.3, 0.3], [0.8, 0.8, 0.8]]))


def test_leave_one_out_weights_by_hand() -> None:
    # S = 2, n = 3, b = 0.1, r = (0.9, 0.3): sum + b = 1.3
    # w1 = (2.7 - 1.3) / 6 = 0.2333, w2 = (0.9 - 1.3) / 6 = -0.0667, |w| sums to 0.3
    weights = reinforce.leave_one_out(torch.tensor([[0.9], [0.3]]), 0.1)
    assert weights[:, 0].tolist() == pytest.approx([7 / 9, -2 / 9], abs=1e-4)
    assert float(weights.abs().sum()) == pytest.approx(1.0)


def test_better_samples_weigh_more_and_a_hopeless_one_is_pushed_away() -> None:
    weights = reinforce.leave_one_out(torch.tensor([[0.9], [0.5], [0.0]]), 0.1)[:, 0]
    assert weights[0] > weights[1] > weights[2]
    assert weights[2] < 0


def test_position_weights_fall_five_to_one_and_sum_to_one() -> None:
    weights = reinforce.position_weights([1] * 5, 5, None)
    assert torch.allclose(weights, torch.tensor([5.0, 4, 3, 2, 1]) / 15)
    ended = reinforce.position_weights([1] * 5, 5, 3)
    assert torch.allclose(ended, torch.tensor([5.0, 4, 3, 0, 0]) / 12)
    longer = reinforce.position_weights([1] * 9, 4, None)  # a target longer than the samples
    assert len(longer) == 9 and float(longer.sum()) == pytest.approx(1.0)


def test_the_greedy_sample_counts_double_as_far_as_it_is_rewarded() -> None:
    names = ["greedy", "seed", "memory"]
    assert reinforce.selection_weights(names, 0.0).tolist() == pytest.approx([1 / 3] * 3)
    assert reinforce.selection_weights(names, 1.0).tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert float(reinforce.selection_weights(names, 0.37).sum()) == pytest.approx(1.0)
