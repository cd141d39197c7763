"""Small random models built in memory, with a real tokenizer trained on the spot.

They say nothing sensible; they have every property of a real model that code may depend on. Nothing
is downloaded, and no global random state is read or changed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from adversariallm.core.rng import Rng

if TYPE_CHECKING:
    from adversariallm.models.local import LocalModel

Architecture = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "gpt_neox",
    "mixtral",
]

GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 12}
WINDOW: dict[str, Any] = {**GROUPED, "sliding_window": 64}
EXTRA: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": WINDOW,
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 12},
    "gemma3_text": WINDOW,
    "phi3": {"num_key_value_heads": 2},
    "olmo2": GROUPED,
    "gpt_neox": {},
    "mixtral": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
}

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKERS = ("<|bos|>", "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")

SUBJECTS = "the garden|a river|our teacher|the small town|this book|my neighbor|the old clock|a cat"
VERBS = "can explain|will describe|should write|may answer|has seen|wants to help with|refuses"
OBJECTS = (
    "a short story|the recipe for bread|good music|an honest question|the weather today|"
    "a long list of names|how to plant trees|what sure means|the first step|sorry words"
)


class Parts(NamedTuple):
    """A transformers model and its tokenizer."""

    model: Any
    tokenizer: Any


def corpus() -> list[str]:
    """Sentences to train a tokenizer on: every subject with every verb and object."""
    rows = itertools.product(SUBJECTS.split("|"), VERBS.split("|"), OBJECTS.split("|"))
    return [f"{subject} {verb} {thing}." for subject, verb, thing in rows]


def tiny_tokenizer(vocab_size: int = 512) -> Any:
    """A byte-level BPE tokenizer with turn markers and a chat template, trained in milliseconds.

    Args:
        vocab_size: number of ids; at least the 256 bytes and the markers.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=MARKERS[0],
        pad_token=MARKERS[1],
        eos_token=MARKERS[2],
        chat_template=TEMPLATE,
    )


def tiny_parts(
    architecture: Architecture = "llama",
    *,
    seed: int = 0,
    vocab_size: int = 512,
    layers: int = 2,
    dtype: str = "float32",
    spread: float = 2.0,
    tied: bool = False,
) -> Parts:
    """A random transformers model and its tokenizer.

    Args:
        architecture: transformers' model type.
        seed: of the weights, which depend on nothing else.
        vocab_size: ids of the tokenizer; the embedding has a few rows more, as real models do.
        layers: number of blocks.
        dtype: number format.
        spread: standard deviation of the logits, roughly, so that distributions are not flat.
        tied: share embedding and head; a random model then mostly repeats its last token.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_tokenizer(vocab_size)
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer) + 8,
        tie_word_embeddings=tied,
        **ids,
        **_sizes(architecture, layers),
    )
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _fill(model, Rng.root(seed).child("tiny", architecture), spread)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model = model.to(getattr(torch, dtype)).eval().requires_grad_(False)
    return Parts(model, tokenizer)


def tiny_model(architecture: Architecture = "llama", **options: Any) -> LocalModel:
    """A `LocalModel` around `tiny_parts(architecture, **options)`."""
    from adversariallm.models.local import LocalModel

    parts = tiny_parts(architecture, **options)
    return LocalModel.from_parts(parts.model, parts.tokenizer, name=f"tiny-{architecture}")


def _sizes(architecture: Architecture, layers: int) -> dict[str, Any]:
    """Configuration values that make a model tiny."""
    common = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
    }
    return common | EXTRA[architecture]


def _fill(model: Any, rng: Rng, spread: float) -> None:
    """Overwrite every matrix from a stream named after it; norms and biases keep their values."""
    import torch

    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            fan_in = parameter.shape[-1]
            scale = spread if parameter is head else 1.0
            noise = torch.randn(parameter.shape, generator=rng.child(name).torch())
            parameter.copy_(noise * (scale / fan_in**0.5))
