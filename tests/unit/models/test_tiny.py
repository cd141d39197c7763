"""Tiny models are real models: deterministic, isolated, with a real tokenizer."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from adversariallm.models.identity import state_hash
from adversariallm.models.tiny import Architecture, tiny_parts, tiny_tokenizer

ARCHITECTURES = get_args(Architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_gives_distributions_that_are_neither_flat_nor_certain(
    architecture: Architecture,
) -> None:
    model, tokenizer = tiny_parts(architecture)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "the garden can explain a short story"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    logits = model(ids).logits
    assert logits.shape[-1] == len(tokenizer) + 8
    assert 1.0 < float(logits.std()) < 3.5
    assert not any(p.requires_grad for p in model.parameters())


def test_weights_depend_on_the_seed_alone_and_leave_the_global_stream_untouched() -> None:
    torch.manual_seed(1)
    first = state_hash(tiny_parts().model)
    after = torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), after)
    torch.manual_seed(2)
    assert state_hash(tiny_parts().model) == first
    assert state_hash(tiny_parts(seed=1).model) != first


def test_the_tokenizer_gives_text_back_and_knows_whole_words() -> None:
    tokenizer = tiny_tokenizer()
    for text in ("the garden can explain", "déjà vu \U0001f600\n\ttab", "  two  blanks "):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert len(tokenizer("the garden can")["input_ids"]) == 3


def test_number_format_and_depth_are_taken() -> None:
    model, _ = tiny_parts(layers=3, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.config.num_hidden_layers == 3
