"""Weights that bitsandbytes stores in few bits: values, bits, gradients and costs of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from accelerate.hooks import ModelHook, add_hook_to_module  # type: ignore[import-untyped]
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from adversariallm.core.generation import GenerationConfig
from adversariallm.inference import Engine, Request, selfcheck
from adversariallm.inference.flops import architecture
from adversariallm.inference.quantized import dequantized, dequantizing, quantized_layers

from .conftest import build, random_ids

bitsandbytes = pytest.importorskip("bitsandbytes", reason="needs adversariallm[quantized]")
NF4 = {
    "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "nf4": NF4,
    "nf4_nested": {**NF4, "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
BLOCK = 64
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


class Pair(NamedTuple):
    """A quantized model, and a plain one with the weights that its bits stand for."""

    quantized: Engine
    plain: Engine


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    folder = tmp_path_factory.mktemp("llama")
    build("llama", **SIZES).save_pretrained(folder)

    def load(kind: str) -> Any:
        config = BitsAndBytesConfig(**KINDS[kind])
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=config, dtype=torch.float32, device_map={"": "cpu"}
        )
        model.generation_config.eos_token_id = None
        return model.eval()

    return load


def _looked_up(layer: torch.nn.Module) -> torch.Tensor:
    """The weight, from the definition of the format: a table times the scale of each block."""
    weight: Any = layer.weight
    shape = (layer.out_features, layer.in_features)
    if weight.dtype == torch.int8:
        return weight.data * (weight.SCB / 127)[:, None]
    state, bits = weight.quant_state, weight.data.flatten().int()
    scales = state.absmax
    if state.nested:
        inner = state.state2
        scales = inner.code[scales.int()] * inner.absmax.repeat_interleave(256)[: len(scales)]
        scales = scales + state.offset
    values = state.code[torch.stack([bits >> 4, bits & 15], dim=1).flatten()]
    whole: torch.Tensor = values * scales.repeat_interleave(BLOCK)[: len(values)]
    return whole.reshape(shape)


def _plain(model: Any) -> Any:
    """A model of ordinary layers with the dequantized weights."""
    plain = build("llama", **SIZES)
    with torch.no_grad():
        for name, layer in model.named_modules():
            if layer in quantized_layers(model):
                plain.get_submodule(name).weight.copy_(_looked_up(layer))
    return plain


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, load: Callable[[str], Any]) -> Pair:
    model = load(request.param)
    plain = _plain(model)
    return Pair(Engine(model), Engine(plain))


def test_the_stored_bits_mean_what_the_format_says(load: Callable[[str], Any]) -> None:
    original = build("llama", **SIZES)
    for kind in KINDS:
        model = load(kind)
        assert len(quantized_layers(model)) == 14
        for name, layer in model.named_modules():
            if layer in quantized_layers(model):
                found = dequantized(layer)
                torch.testing.assert_close(found, _looked_up(layer), rtol=1e-5, atol=1e-6)
                error = (found - original.get_submodule(name).weight).abs().max()
                assert 0 < error < found.abs().max() / (100 if kind == "int8" else 5)


def test_losses_and_generation_do_not_depend_on_the_batch(pair: Pair) -> None:
    engine, plain = pair
    assert engine.report.invariant and not engine.report.flags
    with engine.forward.plain(), selfcheck._Products() as products:
        engine.forward.model(torch.arange(5)[None], use_cache=False)
    assert {k[1] for k in products.found} == {(64, 64), (32, 64), (128, 64), (64, 128), (131, 64)}
    assert engine.policy == plain.policy
    prompts = random_ids([3, 17, 40, 70, 5])
    requests = [Request(p, generation=GenerationConfig(max_new_tokens=6)) for p in prompts]
    together = engine.generate(requests)
    assert [engine.generate([r])[0].ids for r in requests] == [g.ids for g in together]
    assert [g.ids for g in plain.generate(requests)] == [g.ids for g in together]
    prefix = engine.prefix(prompts[2])
    losses = engine.losses(prefix, prompts, [prompts[0]] * 5, chunk=5)
    alone = engine.losses(prefix, prompts, [prompts[0]] * 5, chunk=1)
    assert torch.equal(losses.loss, alone.loss)
    wanted = plain.losses(plain.prefix(prompts[2]), prompts, [prompts[0]] * 5)
    torch.testing.assert_close(losses.loss, wanted.loss, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_that_of_autograd_and_of_finite_differences(pair: Pair) -> None:
    engine, plain = pair
    head, ids, target = random_ids([20, 12, 4])
    slot = range(2, 6)
    found = engine.gradient(engine.prefix(head), ids, slot, target)
    table = plain.forward.model.get_input_embeddings().weight.detach()
    rows = table[torch.tensor([*head, *ids, *target[:-1]])].requires_grad_(True)
    logits = plain.forward.model(inputs_embeds=rows[None]).logits[0, -len(target) :]
    loss = F.cross_entropy(logits, torch.tensor(target))
    (gradient,) = torch.autograd.grad(loss, rows)
    wanted = gradient[len(head) + 2 : len(head) + 6]
    assert found.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    torch.testing.assert_close(found.slot, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()))

    step = 1e-3 / float(wanted.norm())
    start = engine.embed([ids[i] for i in slot])
    ends = [
        engine.gradient(
            engine.prefix(head), ids, slot, target, slot_embeddings=start + sign * step * wanted
        ).loss
        for sign in (1, -1)
    ]
    slope = (ends[0] - ends[1]) / (2 * step)
    assert slope == pytest.approx(float(wanted.square().sum()), rel=0.05)


def test_a_gradient_keeps_no_dequantized_weight(pair: Pair) -> None:
    ids, target = random_ids([12, 4])
    shapes = {tuple(dequantized(m).shape) for m in quantized_layers(pair.quantized.forward.model)}
    kept: dict[str, set[tuple[int, ...]]] = {}
    for name, engine in zip(Pair._fields, pair, strict=True):
        seen = kept[name] = set()

        def pack(tensor: torch.Tensor, seen: set[tuple[int, ...]] = seen) -> torch.Tensor:
            seen.update({tuple(tensor.shape), tuple(tensor.T.shape)} if tensor.dim() == 2 else ())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            engine.gradient(engine.prefix(ids), ids, range(4), target)
    assert not kept["quantized"] & shapes


def test_costs_are_those_of_the_logical_shapes(pair: Pair) -> None:
    engine, plain = pair
    assert engine.arch == plain.arch
    ids, target = random_ids([30, 4])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        plain.forward.model.set_attn_implementation("eager")
        plain.forward.model(torch.tensor([ids]), use_cache=False)
    counted = counter.get_total_flops()
    assert engine.arch.forward(30, 0, 30, square=True) == pytest.approx(counted, rel=0.01)
    usage = [e.gradient(e.prefix(ids), ids, range(4), target).work.usage for e in pair]
    assert usage[0] == usage[1] and usage[0].flops > 0


def test_layers_are_left_as_they_were_found(load: Callable[[str], Any]) -> None:
    model = load("nf4")
    layers = quantized_layers(model)
    functions = [layer.forward for layer in layers]
    with dequantizing(layers):
        assert all(layer.forward != f for layer, f in zip(layers, functions, strict=True))
    assert all("forward" not in layer.__dict__ for layer in layers)
    with pytest.raises(RuntimeError, match="inside"), dequantizing(layers):
        raise RuntimeError("inside")
    assert [layer.forward for layer in layers] == functions


def test_a_row_among_rows_with_outliers_keeps_its_value(load: Callable[[str], Any]) -> None:
    """LLM.int8 looks for outliers in all rows at once: the rule is needed, and it holds."""
    model = load("int8")
    layer = quantized_layers(model)[0]
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    x[1, 5] = 50.0
    assert not torch.allclose(layer(x)[:1], layer(x[:1]), atol=1e-6)
    with dequantizing([layer]):
        torch.testing.assert_close(layer(x)[:1], layer(x[:1]))
        torch.testing.assert_close(layer(x), x @ dequantized(layer).T)


def test_hooks_of_accelerate_still_run(load: Callable[[str], Any]) -> None:
    class Counting(ModelHook):  # type: ignore[misc]
        calls = 0

        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            Counting.calls += 1
            return args, kwargs

    layer = quantized_layers(load("nf4"))[0]
    add_hook_to_module(layer, Counting())
    x = torch.ones(3, 64)
    with dequantizing([layer]):
        torch.testing.assert_close(layer(x), x @ dequantized(layer).T)
    assert Counting.calls == 1


@pytest.mark.parametrize("nested", [False, True])
def test_bits_that_the_library_reordered_mean_the_same(nested: bool) -> None:
    layer = bitsandbytes.nn.Linear4bit(
        128, 64, bias=False, compute_dtype=torch.float32, quant_type="nf4",
        compress_statistics=nested,
    ).to("cpu")  # fmt: skip
    wanted = dequantized(layer)
    scale = float(wanted.abs().max()) / 100  # scales are kept in bfloat16 from then on
    layer.weight.data, layer.weight.quant_state = (
        bitsandbytes.functional._convert_weight_packed_for_cpu(
            layer.weight.data, layer.weight.quant_state
        )
    )
    for _ in range(2):
        torch.testing.assert_close(dequantized(layer), wanted, rtol=0, atol=scale)
    layer.state_dict()  # puts the bits back in place
    torch.testing.assert_close(dequantized(layer), wanted, rtol=0, atol=scale)


def test_an_adapter_over_quantized_layers_counts_and_computes(load: Callable[[str], Any]) -> None:
    def adapt(model: Any) -> Any:
        config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        return get_peft_model(model, config).eval()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = adapt(load("nf4"))
    plain = _plain(load("nf4"))
    base = architecture(plain)
    added = sum(p.numel() for n, p in adapted.named_parameters() if "lora_" in n)
    assert added > 0
    engine = Engine(adapted)
    assert (engine.arch.body, engine.arch.head) == (base.body + added, base.head)
    merged = adapt(plain)
    weights = {n: p for n, p in adapted.named_parameters() if "lora_" in n}
    with torch.no_grad():
        for name, parameter in merged.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    prompts = random_ids([9, 14])
    found = engine.losses(engine.prefix(()), prompts, [prompts[0]] * 2).loss
    other = Engine(merged.merge_and_unload(), policy=engine.policy)
    wanted = other.losses(other.prefix(()), prompts, [prompts[0]] * 2).loss
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
