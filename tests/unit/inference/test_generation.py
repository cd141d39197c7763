"""Generation: equal to the library's own alone, and bitwise equal to itself in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adversariallm.core.errors import ContextLengthError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference import Engine, Generation, Request

from .conftest import ARCHITECTURES, SHARED, build, random_ids

LENGTHS = [3, 17, 40, 41, 77, 130, 1, 5, 33]
GREEDY = GenerationConfig(max_new_tokens=10, log_probs=True)
Engines = Callable[..., Engine]


def requests(options: GenerationConfig = GREEDY, **rest: Any) -> list[Request]:
    return [Request(ids, generation=options, **rest) for ids in random_ids(LENGTHS)]


def outcome(rows: list[Generation]) -> list[Any]:
    return [(r.ids, r.log_probs, r.finish_reason) for r in rows]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_ids_are_those_of_the_librarys_unbatched_generate(
    engines: Engines, name: str
) -> None:
    engine = engines(name)
    prompts = random_ids([3, 40, 77])
    ours = engine.generate([Request(p, generation=GREEDY) for p in prompts])
    for prompt, answer in zip(prompts, ours, strict=True):
        tokens = torch.tensor([prompt])
        theirs = engine.forward.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=10, do_sample=False
        )
        assert list(answer.ids) == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ids_and_log_probs_do_not_depend_on_the_batch(
    engines: Engines, name: str, dtype: torch.dtype
) -> None:
    engine = engines(name, dtype)
    assert engine.report.invariant, engine.report
    asked = requests()
    alone = outcome([engine.generate([r])[0] for r in asked])
    assert outcome(engine.generate(asked)) == alone
    assert outcome(engine.generate(asked[::-1])) == alone[::-1]
    assert outcome(engine.generate([asked[5], asked[0], asked[5]])) == [
        alone[5], alone[0], alone[5]
    ]  # fmt: skip
