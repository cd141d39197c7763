"""FLOP formula against `torch.utils.flop_counter` over unpadded single sequences (DESIGN 12.7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adversariallm.inference.flops import Architecture, AttentionShape, architecture

from .conftest import build, random_ids

NAMES = [
    "llama", "llama_tied", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "olmo2",
    "gpt_neox", "mixtral", "qwen3_moe",
]  # fmt: skip


def eager(name: str) -> Any:
    """A model whose attention the counter can see, window-free so that squares are squares."""
    options = {"sliding_window": None} if name == "mistral" else {}
    if name in ("gemma2", "gemma3", "mixtral"):
        options = {"sliding_window": 4096}
    model = build(name, **options)
    model.set_attn_implementation("eager")
    if hasattr(model, "set_experts_implementation"):
        try:
            model.set_experts_implementation("eager")
        except ValueError:
            pass
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def counted(model: Any, call: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", NAMES)
def test_prefill_decode_and_cached_forward_agree_with_the_counter(name: str) -> None:
    model = eager(name)
    arch = architecture(model)
    ids = torch.tensor([random_ids([60])[0]])
    with torch.no_grad():
        full = counted(model, lambda: model(ids, use_cache=False))
        assert arch.forward(60, 0, 60, square=True) == pytest.approx(full, rel=0.01)
        last = counted(model, lambda: model(ids, use_cache=False, logits_to_keep=1))
        assert arch.forward(60, 0, 1, square=True) == pytest.approx(last, rel=0.01)
        for cached in (40, 59):
            cache = model(ids[:, :cached], use_cache=True)
            stored = getattr(cache, "cache", None) or cache.past_key_values
            name_of_cache = "cache" if hasattr(cache, "cache") else "past_key_values"
            rest, keys = ids[:, cached:], {name_of_cache: stored}
            new = counted(model, partial(model, rest, **keys, logits_to_keep=1))
            assert arch.forward(60 - cached, cached, 1, square=True) == pytest.approx(new, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_backward_to_the_inputs_agrees_with_the_counter(name: str) -> None:
    model = eager(name)
    arch = architecture(model)
    vectors = model.get_input_embeddings()(torch.tensor([random_ids([50])[0]])).detach()
    vectors.requires_grad_(True)
    logits = model(inputs_embeds=vectors, use_cache=False, logits_to_keep=7).logits
    back = counted(model, lambda: torch.autograd.grad(logits.float().sum(), vectors))
    assert arch.backward(50, 0, 7, square=True) == pytest.approx(back, rel=0.01)


def test_the_causal_term_counts_visible_pairs_by_brute_force() -> None:
    for window in (None, 1, 5, 16):
        arch = Architecture(0, 0, (AttentionShape(3, 5, window),))
        for new in (1, 4, 20):
            for cached in (0, 3, 17):
                pairs = sum(
                    1
                    for query in range(cached, cached + new)
                    for key in range(query + 1)
                    if window is None or key > query - window
                )
                assert arch.attention(new, cached) == 2 * (3 + 5) * pairs
    plain = Architecture(0, 0, (AttentionShape(4, 4),))
    # the specification's form: 4 d P (c + (P + 1) / 2)
    assert plain.attention(10, 7) == 4 * 4 * 10 * (7 + 11 / 2)


def test_generation_is_prefill_plus_one_pass_per_fed_id() -> None:
    arch = Architecture(1000, 100, (AttentionShape(8, 8),))
    found = arch.generation(prompt=12, generated=4)
    expected = arch.forward(12, 0, 1) + sum(arch.forward(1, 12 + i, 1) for i in range(3))
    assert found.flops == expected
    assert (found.forward_passes, found.tokens_processed, found.tokens_generated) == (4, 15, 4)
    assert found.flops_2n == 2 * 1100 * 15
    assert arch.usage(5, 0, 1, backward=True).flops_2n == 4 * 1100 * 5
    assert arch.generation(12, 0).forward_passes == 1


def test_experts_count_only_where_active_and_a_tied_head_counts_once() -> None:
    tied, untied = (architecture(build(n)) for n in ("llama_tied", "llama"))
    assert tied.head == untied.head == 131 * 48
    moe = architecture(build("qwen3_moe"))
    experts = 2 * (2 * (3 * 48 * 40)) + 2 * 8 * 48  # two layers, two active experts, routers
    attention = 2 * (48 * 96 + 2 * 48 * 32 + 96 * 48)
    assert moe.body == experts + attention
