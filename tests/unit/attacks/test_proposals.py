from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adversariallm.attacks._kit import proposals
from adversariallm.core.rng import Rng


def generator(name: str = "g") -> torch.Generator:
    return Rng.root(0).child(name).torch()


@given(st.integers(1, 100), st.integers(1, 1024))
def test_even_positions_are_exactly_as_many_as_asked_and_in_range(n: int, width: int) -> None:
    positions = proposals.even_positions(n, width)
    assert len(positions) == width
    assert 0 <= int(positions.min()) and int(positions.max()) < n
    counts = torch.bincount(positions, minlength=n)
    assert int(counts.max() - counts.min()) <= 1


def test_uniform_positions_are_distinct_and_uniform() -> None:
    positions = proposals.uniform_positions(6, 6000, 3, generator())
    assert all(len(set(row)) == 3 for row in positions.tolist())
    counts = torch.bincount(positions.flatten(), minlength=6)
    assert float((counts - 3000).abs().max()) < 200
    with pytest.raises(ValueError, match="n_replace=7"):
        proposals.uniform_positions(6, 2, 7, generator())


def test_a_shortlist_never_holds_a_forbidden_id_however_long() -> None:
    scores = torch.tensor([[3.0, -9.0, 1.0, 1.0, 0.5], [0.0, -1.0, -2.0, -2.0, 7.0]])
    allowed = torch.tensor([True, False, True, True, True])
    assert proposals.shortlist(scores, allowed, 2).tolist() == [[4, 2], [2, 3]]
    assert proposals.shortlist(scores, allowed, 99).tolist() == [[4, 2, 3, 0], [2, 3, 0, 4]]


@pytest.mark.parametrize("width", [1, 5, 8, 20])
def test_even_positions_reach_the_whole_slot_however_few_candidates(width: int) -> None:
    slot = torch.zeros(8, dtype=torch.long)
    allowed = torch.tensor([False, True, True])
    touched: set[int] = set()
    for step in range(60):
        rows = proposals.propose(
            slot, None, allowed, Rng.root(0).child(step), width=width, topk=2, positions="even"
        )
        where = rows.nonzero()[:, 1]
        if width >= 8:
            assert torch.equal(where, proposals.even_positions(8, width))
        assert len(set(where.tolist())) == min(width, 8)
        touched |= set(where.tolist())
    assert touched == set(range(8))


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 6))
def test_a_shortlist_is_the_head_of_a_stable_sort(seed: int, topk: int, values: int) -> None:
    draw = Rng.root(seed).torch()
    scores = torch.randint(-values, values, (3, 30), generator=draw).float() / 2
    allowed = torch.rand(30, generator=draw) < 0.7
    allowed[0] = True
    masked = scores.masked_fill(~allowed, float("inf"))
    expected = torch.sort(masked, dim=1, stable=True).indices[:, : min(topk, int(allowed.sum()))]
    assert torch.equal(proposals.shortlist(scores, allowed, topk), expected)


def test_replacements_change_only_the_chosen_positions() -> None:
    slot = torch.tensor([10, 11, 12, 13])
    positions = proposals.uniform_positions(4, 50, 2, generator())
    allowed = torch.tensor([20, 21, 22])
    rows = proposals.replace_uniformly(slot, positions, allowed, generator("t"))
    for row, chosen in zip(rows.tolist(), positions.tolist(), strict=True):
        for p, token in enumerate(row):
            assert token in (20, 21, 22) if p in chosen else token == slot[p]


def test_each_position_gets_its_own_shortlist() -> None:
    slot = torch.zeros(3, dtype=torch.long)
    best = torch.tensor([[1, 2], [3, 4], [5, 6]])
    positions = proposals.even_positions(3, 300).unsqueeze(1)
    rows = proposals.replace_from_shortlist(slot, positions, best, generator())
    for row, (p,) in zip(rows.tolist(), positions.tolist(), strict=True):
        assert row[p] in best[p].tolist()
        assert sum(row) == row[p]
    assert {tuple(r) for r in rows.tolist()} == {
        (1, 0, 0), (2, 0, 0), (0, 3, 0), (0, 4, 0), (0, 0, 5), (0, 0, 6)
    }  # fmt: skip


def test_random_per_position_draws_allowed_distinct_ids_everywhere() -> None:
    slot = torch.tensor([1, 1, 1])
    allowed = torch.arange(10, 20)
    rows = proposals.replace_each_position(slot, 12, allowed, generator())
    assert len(rows) == 12
    for position in range(3):
        drawn = rows[4 * position : 4 * position + 4, position].tolist()
        assert len(set(drawn)) == 4 and set(drawn) <= set(range(10, 20))


@pytest.mark.parametrize("width", [1, 3, 4])
def test_random_per_position_is_never_wider_than_asked(width: int) -> None:
    slot = torch.ones(5, dtype=torch.long)
    touched: set[int] = set()
    for draw in range(40):
        rows = proposals.replace_each_position(
            slot, width, torch.arange(10, 20), generator(str(draw))
        )
        where = (rows != slot).nonzero()
        assert len(rows) == width
        assert where[:, 0].tolist() == list(range(width))
        assert len(set(where[:, 1].tolist())) == width
        touched |= set(where[:, 1].tolist())
    assert touched == set(range(5))


def test_a_promised_rank_counts_who_was_promised_less_loss() -> None:
    scores = torch.tensor([[0.0, -1.0, 5.0], [0.0, -3.0, 1.0]])
    rows = torch.tensor([[0, 0], [1, 1], [0, 1], [2, 1], [1, 1]])  # 0, -4, -3, 2, -4
    ranks = [proposals.promised_rank(rows, row, scores) for row in range(5)]
    assert ranks == [3, 0, 2, 4, 0]


@settings(max_examples=30)
@given(st.integers(0, 8), st.integers(1, 8))
def test_distinct_draws_never_repeat_or_take_the_impossible(possible: int, k: int) -> None:
    probs = torch.zeros(1, 10)
    probs[0, :possible] = 1.0
    (drawn,) = proposals.distinct_multinomial(probs, k, generator())
    assert len(drawn) == min(k, possible) == len(set(drawn.tolist()))
    assert all(int(t) < possible for t in drawn)


def test_duplicates_go_and_order_stays() -> None:
    rows = torch.tensor([[1, 2], [3, 4], [1, 2], [5, 6]])
    assert proposals.without_duplicates(rows).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert proposals.without_duplicates(rows, torch.tensor([3, 4])).tolist() == [[1, 2], [5, 6]]
