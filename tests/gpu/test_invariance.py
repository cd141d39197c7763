"""The contract of the engine on CUDA; runs where a device is present (`-m gpu`)."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference import Engine, Request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text", "mixtral"])
def test_results_do_not_depend_on_the_batch(kind: str, dtype: torch.dtype) -> None:
    config = AutoConfig.for_model(
        kind, vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        num_local_experts=4, sliding_window=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).to("cuda", dtype).eval()
    engine = Engine(model)
    assert engine.report.invariant, engine.report
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 17, 700, 41, 130, 1, 260, 33, 64, 12]
    prompts = [tuple(torch.randint(3, 512, (n,), generator=generator).tolist()) for n in lengths]
    options = GenerationConfig(max_new_tokens=16, temperature=1.0, log_probs=True)
    asked = [
        Request(p, generation=options, rng=Rng.root(0).child(i)) for i, p in enumerate(prompts)
    ]
    alone = [engine.generate([r])[0] for r in asked]
    together = engine.generate(asked)
    assert [(r.ids, r.log_probs) for r in together] == [(r.ids, r.log_probs) for r in alone]
    prefix = engine.prefix(prompts[2][:100])
    targets = [(5, 6, 7)] * len(prompts)
    whole = engine.losses(prefix, prompts, targets).loss
    assert torch.equal(engine.losses(prefix, prompts, targets, chunk=1).loss, whole)
    gradient = engine.gradient(prefix, prompts[1], (0, 1), (5, 6, 7))
    assert gradient.finite and gradient.slot.shape == (2, 256)
