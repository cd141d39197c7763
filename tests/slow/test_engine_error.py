"""On a real model the engine is as near to a float64 forward as the library is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from adversariallm.inference import Engine, RowPolicy, kernels
from adversariallm.inference.prefix import Prefix
from adversariallm.inference.scoring import Item, Scorer

pytestmark = pytest.mark.slow
TEXTS = (
    "Bread is made of flour, water, salt and yeast. Knead the dough for ten minutes. " * 6,
    "The river rises in the hills, passes three villages and a mill, and reaches the sea.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))",
    "The town began at a ford, where traders met in summer. Later came a bridge. " * 3,
)
TARGET = 12
"""Last ids of each text, whose loss is taken."""
ALLOWED = {"torch": 1.05, "onednn": 1.15}
"""Times the library's own error [measured with AVX2: 1.02 and 1.07]."""


class Case(NamedTuple):
    """A model, its engine's rows, and its library's logits in float32 and float64."""

    model: Any
    policy: RowPolicy
    inputs: list[tuple[int, ...]]
    library: list[torch.Tensor]
    exact: list[torch.Tensor]


@contextmanager
def _float64(model: Any) -> Iterator[None]:
    before = {n: p.data for n, p in model.named_parameters()}
    model.double()
    yield
    model.float()
    for name, parameter in model.named_parameters():
        parameter.data = before[name]


@pytest.fixture(scope="module")
def case(smollm2_path: Path) -> Case:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path)
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()
    inputs = [tuple(tokenizer(text)["input_ids"]) for text in TEXTS]

    @torch.no_grad()
    def logits() -> list[torch.Tensor]:
        return [model(torch.tensor([ids])).logits[0] for ids in inputs]

    library = logits()
    with _float64(model):
        exact = logits()
    return Case(model, Engine(model).policy, inputs, library, exact)


def _error(logits: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    parts = [(a.double() - b).square().mean() for a, b in zip(logits, exact, strict=True)]
    return float(torch.stack(parts).mean().sqrt())


@pytest.mark.parametrize("kernel", kernels.available(torch.float32, torch.device("cpu")))
@torch.no_grad()
def test_the_error_against_float64_is_that_of_the_library(case: Case, kernel: str) -> None:
    engine = Engine(case.model, policy=replace(case.policy, kernel=kernel))
    with engine.session():
        scorer = Scorer(engine.forward, engine.arch, engine.policy)
        items = [Item(ids, len(ids)) for ids in case.inputs]
        ours = scorer.map(Prefix(), items, lambda logits, _: logits)
    assert 0 < _error(ours, case.exact) <= ALLOWED[kernel] * _error(case.library, case.exact)


@pytest.mark.parametrize("kernel", kernels.available(torch.float32, torch.device("cpu")))
def test_losses_are_those_of_an_uncached_forward(case: Case, kernel: str) -> None:
    """The loss of the library's logits is taken in float64: its float32 one is off by 2e-5."""
    engine = Engine(case.model, policy=replace(case.policy, kernel=kernel))
    for ids, library, exact in zip(case.inputs, case.library, case.exact, strict=True):
        target = torch.tensor(ids[-TARGET:])
        rows = slice(-TARGET - 1, -1)
        cut = len(ids) // 4
        losses = engine.losses(engine.prefix(ids[:cut]), [ids[cut:-TARGET]], [ids[-TARGET:]])
        assert abs(losses.loss[0] - cross_entropy(library[rows].double(), target)) < 1e-5
        assert abs(losses.loss[0] - cross_entropy(exact[rows], target)) < 1e-5
