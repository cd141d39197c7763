"""Sampling: the library's own filters are the oracle, and draws belong to positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference.sampling import choose, filtered, restrict


def library_probabilities(logits: torch.Tensor, options: GenerationConfig) -> torch.Tensor:
    steps: list[Any] = [logits_process.TemperatureLogitsWarper(options.temperature)]
    if options.top_k is not None:
        steps.append(logits_process.TopKLogitsWarper(options.top_k))
    if options.top_p < 1:
        steps.append(logits_process.TopPLogitsWarper(options.top_p))
    if options.min_p > 0:
        steps.append(logits_process.MinPLogitsWarper(options.min_p))
    # float32 sums differ between processors, and would move words across a bound
    scores = LogitsProcessorList(steps)(torch.zeros(1, 1, dtype=torch.long), logits[None].double())
    return torch.softmax(scores, dim=-1)[0]


@pytest.mark.parametrize("size", [7, 900])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    "filters",
    [
        {}, {"top_k": 1}, {"top_k": 5}, {"top_k": 5000, "top_p": 0.5}, {"top_p": 0.1},
        {"top_p": 0.9}, {"top_p": 0.9999}, {"top_k": 6, "top_p": 0.6}, {"min_p": 0.2},
        {"top_p": 0.95, "min_p": 0.05},
    ],
)  # fmt: skip
def test_filters_agree_with_the_library(
    size: int, temperature: float, filters: dict[str, Any]
) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    options = GenerationConfig(temperature=temperature, **filters)
    ids, probs = filtered(logits, options)
    ours = torch.zeros(size, dtype=torch.float64)
    ours[ids] = probs
    torch.testing.assert_close(ours, library_probabilities(logits, options), rtol=1e-5, atol=1e-7)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1, 1e-9]).log()
    options = GenerationConfig(temperature=1.0)
    rng = Rng.root(0).child("draws")
    counts = torch.zeros(5)
    for i in range(4000):
        counts[choose(logits, options, rng, i)] += 1
    expected = torch.tensor([0.5, 0.2, 0.2, 0.1]) * 4000
    statistic = ((counts[:4] - expected) ** 2 / expected).sum()
    assert counts[4] == 0
    assert statistic < 16.3  # chi-square, 3 degrees of freedom, p = 0.001


def test_a_draw_belongs_to_its_position_and_stream() -> None:
    logits = torch.zeros(1000)
    options = GenerationConfig(temperature=1.0)
    stream = Rng.root(1).child("sample", 0)
    drawn = [choose(logits, options, stream, i) for i in range(20)]
    assert [choose(logits, options, stream, i) for i in (19, 3, 0)] == [
        drawn[i] for i in (19, 3, 0)
    ]
    other = Rng.root(1).child("sample", 1)
    assert [choose(logits, options, other, i) for i in range(20)] != drawn


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert choose(torch.tensor([0.0, 2.0, 2.0, 1.0]), GenerationConfig(), None, 0) == 1


@given(st.integers(1, 40), st.integers(0, 10_000))
def test_top_k_keeps_exactly_k_even_with_ties(k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 4, (40,), generator=generator).float()
    ids, _ = filtered(logits, GenerationConfig(temperature=1.0, top_k=k))
    assert len(set(ids.tolist())) == k
    assert logits[ids].min() >= logits.sort(descending=True).values[k - 1]


def test_restrict_forbids_what_masks_do_not_name() -> None:
    mask = torch.tensor([True, False, True])
    out = restrict(torch.zeros(5), [mask, None], forbidden=[2, 99])
    assert torch.isfinite(out).tolist() == [True, False, False, False, False]
