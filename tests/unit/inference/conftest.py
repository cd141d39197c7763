"""Tiny random models with peaked logits, of ten architectures; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from adversariallm.inference import Engine

VOCABULARY = 131
SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
WINDOW = {**GROUPED, "sliding_window": 24}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 2}),
    "llama_tied": ("llama", {"num_key_value_heads": 3, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("qwen3", GROUPED),
    "mistral": ("mistral", {**GROUPED, "sliding_window": None}),
    "mistral_window": ("mistral", WINDOW),
    "gemma2": ("gemma2", {**WINDOW, "query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3_text", WINDOW),
    "phi3": ("phi3", {"num_key_value_heads": 2}),
    "olmo2": ("olmo2", {"num_key_value_heads": 2}),
    "gpt_neox": ("gpt_neox", {}),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4}),
    "qwen3_moe": (
        "qwen3_moe",
        {**GROUPED, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40},
    ),
}


def build(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A tiny model of that architecture with peaked, prompt-dependent logits."""
    kind, extra = ARCHITECTURES[name]
    config = AutoConfig.for_model(kind, **{**SHARED, **extra, **options})
    if name == "gemma2":
        config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.mul_(4.0)
    model.generation_config.eos_token_id = None
    return model.to(dtype).eval()


def random_ids(lengths: list[int], seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of those lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()) for n in lengths
    ]


@pytest.fixture(scope="session")
def engines() -> Callable[..., Engine]:
    """Engines by architecture and type, checked once per session."""
    made: dict[tuple[str, torch.dtype], Engine] = {}

    def get(name: str = "llama", dtype: torch.dtype = torch.float32) -> Engine:
        if (name, dtype) not in made:
            made[name, dtype] = Engine(build(name, dtype))
        return made[name, dtype]

    return get
