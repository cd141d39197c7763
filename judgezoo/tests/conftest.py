"""Shared fixtures: a local chat server, and an environment of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from judgezoo.testing import StubServer

WORDS = "Yes No yes no safe unsafe un Safe Unsafe 1 2 3 4 5"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) or m['role'] == 'system' %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<<' + m['role'] + '>>\n' }}{% if m['content'] is string %}{{ m['content'] | trim }}"
    "{% else %}{{ m['content'][0]['text'] | trim }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if guideline is defined %}{{ 'Guideline: ' + guideline + '\n' }}{% endif %}"
    "{% if guardian_config is defined %}"
    "{{ 'Risk: ' + guardian_config['risk_name'] + '\n' }}{% endif %}"
    "Verdict:{% if not add_generation_prompt %}{{ '\n\n' }}{% endif %}"
)


@pytest.fixture
def server() -> Iterator[StubServer]:
    stub = StubServer()
    yield stub
    stub.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache, keys and switches out of the tests."""
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path / "cache"))
    for name in ("JUDGEZOO_OFFLINE", "HF_HUB_OFFLINE", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer of some hundred tokens in which every label is one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = ["<s>", "</s>", "<|turn|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    words = WORDS.split()
    core.train_from_iterator([" ".join(words), "\n".join(words), "\n\n", ":", *words] * 50, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )


@pytest.fixture(scope="session")
def make_model(tokenizer: Any) -> Callable[..., Any]:
    """Return a maker of tiny models whose read-out is calibrated to some label tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(
        prompts: Sequence[Sequence[int]], labels: Sequence[int], seed: int = 0, positive: int = 1
    ) -> Any:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        model = LlamaForCausalLM(config).eval()
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.data *= 4
        calibrate(model, prompts, labels, seed, positive)
        return model

    return make


@pytest.fixture(scope="session")
def calibrated() -> Callable[..., None]:
    """Return the function that calibrates a model's read-out."""
    return calibrate


def calibrate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[int],
    seed: int,
    positive: int = 1,
) -> None:
    """Set the read-out so that the labels hold most of the mass and differ between prompts.

    The first ``positive`` labels together vary most.
    """
    import torch

    with torch.no_grad():
        states = torch.stack([model.model(torch.tensor([p]))[0][0, -1] for p in prompts])
        mean = states.mean(dim=0)
        _, sizes, directions = torch.linalg.svd(states - mean, full_matrices=False)
        head = model.lm_head.weight
        head.data /= 20
        rest = torch.logsumexp(states @ head.T, dim=-1).mean()
        generator = torch.Generator().manual_seed(seed)
        best, spread = head.data.clone(), -1.0
        for _ in range(100):
            rank = len(prompts) - 1
            mix = torch.randn(len(labels), rank, generator=generator) / sizes[:rank]
            rows = mean / mean.dot(mean) * (rest + 3) + mix @ directions[:rank] * 2
            head.data[list(labels)] = rows
            found = (
                torch.softmax(states @ head.T, dim=-1)[:, list(labels[:positive])]
                .sum(-1)
                .std()
                .item()
            )
            if found > spread:
                best, spread = head.data.clone(), found
        head.data.copy_(best)
