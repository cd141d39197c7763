"""The self-check: what it measures, when it refuses, and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import MambaConfig, MambaForCausalLM

from adversariallm.core.errors import ModelError
from adversariallm.inference import SAFE_POLICY, Engine, Report, RowPolicy, attention, selfcheck
from adversariallm.inference.numerics import (
    Products,
    RowInvariant,
    padded_rows,
    split_rows,
    tiled_product,
)
from adversariallm.inference.selfcheck import choose_policy, group_row_counts, row_classes

from .conftest import build

Engines = Callable[..., Engine]


def test_chosen_row_counts_give_equal_bits_for_every_weight(engines: Engines) -> None:
    engine = engines("llama")
    policy = engine.policy
    assert engine.report.invariant and engine.report.difference < 1e-3
    x = torch.randn(256, 48, generator=torch.Generator().manual_seed(0))
    for module in engine.forward.model.modules():
        if isinstance(module, torch.nn.Linear) and module.in_features == 48:
            for products in (policy.filling, policy.decoding):
                with torch.no_grad(), RowInvariant(products):
                    whole = module(x)
                    assert all(torch.equal(module(x[:t]), whole[:t]) for t in products.tiles)
                    assert torch.equal(module(x[7:100]), whole[7:100])


def test_row_counts_that_disagree_are_kept_apart() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 1e-6) if x.shape[0] in (16, 64) else x

    x = torch.zeros(1, 7)
    groups = group_row_counts([row_classes(lambda x: 2 * x, x), row_classes(picky, x)])
    others = tuple(n for n in selfcheck.ROW_COUNTS if n not in (16, 64))
    assert sorted(groups) == sorted([others, (16, 64)])
    policy = choose_policy(groups)
    assert policy.decode == policy.prefill == others
    assert choose_policy([(8, 16, 32), (64, 128), (256,)]).prefill == (64, 128)
    assert choose_policy([]) == choose_policy([(128, 256)]) == SAFE_POLICY


def test_decoded_rows_fill_whole_vectors(engines: Engines) -> None:
    engine = engines("llama", torch.bfloat16)
    assert engine.forward.step > 1
    assert all(rows % engine.forward.step == 0 for rows in engine.policy.decode)


def test_a_row_count_whose_last_rows_differ_is_kept_apart() -> None:
    def ragged(x: torch.Tensor) -> torch.Tensor:
        out = 2 * x
        if x.shape[0] == 24:
            out[-1] *= 1 + 1e-6
        return out

    groups = group_row_counts([row_classes(ragged, torch.zeros(1, 7))])
    assert (24,) in groups and len(groups) == 2


def test_the_probe_sees_every_shape_of_product(engines: Engines) -> None:
    forward = engines("llama").forward
    with selfcheck._Products() as products:
        forward.model(torch.arange(5)[None], use_cache=False)
    shapes = {tuple(key[1]) for key in products.found}
    linear = [m for m in forward.model.modules() if isinstance(m, torch.nn.Linear)]
    assert shapes == {tuple(m.weight.shape) for m in linear}


def test_safe_mode_has_one_shape_and_still_is_invariant(engines: Engines) -> None:
    checked = engines("llama")
    engine = Engine(checked.forward.model, policy=SAFE_POLICY)
    assert SAFE_POLICY.fixed
    with torch.no_grad():
        assert selfcheck.is_invariant(engine.forward, engine.arch, SAFE_POLICY)
    assert engine.report.flags == ("invariance: unverified",)
    assert checked.report.flags == ()


def test_without_the_rules_batches_would_differ(engines: Engines) -> None:
    """The check can fail: with mixed, unverified row counts it does, or nothing needs a rule."""
    engine = engines("llama")
    loose = RowPolicy(prefill=(1, 2, 3, 5, 8, 16, 32), decode=(1, 2, 3, 5, 8, 16, 32))
    x = torch.randn(40, 48, generator=torch.Generator().manual_seed(1))
    weight = engine.forward.model.lm_head.weight
    differs = not all(torch.equal(F.linear(x[:m], weight)[0], F.linear(x, weight)[0])
                      for m in loose.prefill)  # fmt: skip
    with torch.no_grad():
        invariant = selfcheck.is_invariant(engine.forward, engine.arch, loose)
    assert not (differs and invariant)


def test_a_model_without_a_key_cache_is_refused() -> None:
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4,
                         num_attention_heads=4)  # fmt: skip
    with pytest.raises(ModelError, match="not supported by the engine|attention interface"):
        Engine(MambaForCausalLM(config).eval())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_sees_too_much_is_refused(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_mask = attention._mask

    def all_visible(*args: Any) -> torch.Tensor:
        return torch.zeros_like(true_mask(*args))

    monkeypatch.setattr(attention, "_mask", all_visible)
    with pytest.raises(ModelError, match="not supported by the engine"):
        Engine(build("llama", dtype))


def test_the_report_is_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("qwen3")
    first = Engine(model, cache=tmp_path).report
    (path,) = tmp_path.glob("*.json")
    assert Report.from_dict(json.loads(path.read_text())) == first
    monkeypatch.setattr(selfcheck, "self_check", lambda *_: pytest.fail("checked again"))
    assert Engine(model, cache=tmp_path).report == first
    with pytest.raises(pytest.fail.Exception, match="checked again"):
        Engine(build("qwen3", torch.bfloat16), cache=tmp_path)


def test_rows_are_split_into_the_cheapest_tiles() -> None:
    tiles = (16, 32, 64, 128, 256)
    assert split_rows(16, tiles) == (16,)
    assert split_rows(17, tiles) == (32,)
    assert split_rows(500, tiles) == (256, 256)
    assert split_rows(300, tiles) == (256, 64)
    assert split_rows(33, (16,)) == (16, 16, 16)
    assert padded_rows(10_000, tiles) == 10_000 + (-10_000) % 16
    assert padded_rows(0, (16,)) == 0
    for rows in range(1, 700):
        sizes = split_rows(rows, (16, 32, 256))
        assert sum(sizes[:-1]) < rows <= sum(sizes)


def test_tiled_products_equal_plain_ones_and_are_differentiable() -> None:
    weight = torch.randn(5, 7, dtype=torch.float64)
    x = torch.randn(3, 11, 7, dtype=torch.float64, requires_grad=True)
    sizes = []

    def product(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows @ weight.T

    out = tiled_product(x, (4, 8), product)
    torch.testing.assert_close(out, x @ weight.T)
    assert sum(sizes) == 36 and set(sizes) <= {4, 8}
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, weight.sum(0).expand_as(x))
    with RowInvariant(Products((4, 8))):
        torch.testing.assert_close(F.linear(x, weight), out)
        torch.testing.assert_close(torch.addmm(torch.ones(5).double(), x[0], weight.T), out[0] + 1)
        torch.testing.assert_close(x[0] @ weight.T, out[0])
