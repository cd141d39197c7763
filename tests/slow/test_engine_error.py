"""On a real model the engine is as near to a float64 forward as the library is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from adversariallm.inference import Engine
from adversariallm.inference.prefix import Prefix
from adversariallm.inference.scoring import Item, Scorer

pytestmark = pytest.mark.slow
TEXTS = (
    "Bread is made of flour, water, salt and yeast. Knead the dough for ten minutes. " * 6,
    "The river rises in the hills, passes three villages and a mill, and reaches the sea.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))",
)
ALLOWED = 1.3
"""Times the library's own error: oneDNN adds in longer chains than MKL [measured: up to 1.23]."""


def _error(logits: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    parts = [(a.double() - b).square().mean() for a, b in zip(logits, exact, strict=True)]
    return float(torch.stack(parts).mean().sqrt())


@torch.no_grad()
def test_the_error_against_float64_is_that_of_the_library(smollm2_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path)
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()
    inputs = [tuple(tokenizer(text)["input_ids"]) for text in TEXTS]
    library = [model(torch.tensor([ids])).logits[0] for ids in inputs]
    engine = Engine(model)
    with engine.session():
        scorer = Scorer(engine.forward, engine.arch, engine.policy)
        items = [Item(ids, len(ids)) for ids in inputs]
        ours = scorer.map(Prefix(), items, lambda logits, _: logits)
    model.double()
    exact = [model(torch.tensor([ids])).logits[0] for ids in inputs]
    assert _error(library, exact) > 0
    assert _error(ours, exact) <= ALLOWED * _error(library, exact)
