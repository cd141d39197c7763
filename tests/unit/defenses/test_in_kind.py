"""Published behavior, on a model whose best suffix is known: what stops GCG, what adapting regains.

The planted model complies once more than half of its secret words are in the input. A scorer that
knows how often each token is in plain text stands for a language model.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.core.budget import Usage
from adversariallm.core.protocols import Losses, Needs, Work
from adversariallm.core.records import RunDocument
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import corpus
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.shields import DefenseJudge, defended
from adversariallm.runs.spec import PluginSpec
from judgezoo import Judge

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import spec  # noqa: E402

SEARCH = {"num_steps": 40, "search_width": 32, "topk": 96, "initial": "! ! ! ! ! ! ! !"}
SEEDS = range(3)


class Frequencies:
    """Next-token probabilities that only count how often a token is in plain sentences."""

    name = "frequencies"
    gives = Needs.TEXT | Needs.TOKENS | Needs.LOGITS
    context_length = 2048

    def __init__(self, chat: Any, size: int) -> None:
        self.chat = chat
        seen = Counter(i for text in corpus() for i in chat.codec.encode(f" {text}"))
        counts = torch.tensor([seen.get(i, 0) + 0.01 for i in range(size)])
        self._nll = -(counts / counts.sum()).log()

    def losses(
        self, inputs: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], **_: Any
    ) -> Losses:
        rows = tuple(self._nll[list(target)] for target in targets)
        usage = tuple(Usage(queries=1, flops=len(target)) for target in targets)
        work = Work(sum(usage, Usage()), rows=usage)
        loss = torch.stack([row.mean() for row in rows])
        return Losses(loss, rows, torch.zeros(len(rows), dtype=torch.bool), work)

    def identity(self) -> Mapping[str, Any]:
        return {"fake": "frequencies"}


@cache
def planted() -> PlantedModel:
    return PlantedModel()


@cache
def behind(name: str) -> Any:
    options: dict[str, Any] = {"copies": 15, "q": 0.15}
    if name == "perplexity_filter":
        options = {"threshold": 6.5, "scorer": "helper", "penalty": 5.0}
    frequencies: Any = Frequencies(planted().chat, planted().num_embeddings)
    return defended(
        planted(),
        [PluginSpec(name=name, version=1, options=options)],
        helpers={"defense": frequencies},
        judge=lambda judge: DefenseJudge(lambda meter: Judge.from_name(judge)),
        texts=lambda ids: {},
    )


@cache
def attacked(name: str, knowledge: str, seed: int) -> RunDocument:
    """GCG on the planted model; its last step is answered behind the defense."""
    task = spec(
        "gcg", planted(), [planted().behavior()], options=SEARCH, seed=seed, knowledge=knowledge,
        defense=(PluginSpec(name=name, version=1),),
    )  # fmt: skip
    long = task.spec.generation.model_copy(update={"max_new_tokens": 16})
    amounts = task.spec.amounts.model_copy(update={"completions": "last"})
    changed = task.spec.model_copy(update={"generation": long, "amounts": amounts})
    model = behind(name)
    sees = (planted(),) if knowledge == "unaware" else (model,)
    resources = Resources(models=(model,), attacked=sees, bare=(planted(),))
    return execute(task.model_copy(update={"spec": changed}), resources, MemoryLog())[0]


def complied(name: str, knowledge: str) -> tuple[int, int]:
    """How many of the seeds end in a complying answer: behind the defense, and without it."""
    last = [attacked(name, knowledge, seed).runs[0].steps[-1] for seed in SEEDS]
    wanted = planted().answer
    with_it = sum(step.model_completions[0].startswith(wanted) for step in last)
    without = sum((step.completions[0].undefended or "").startswith(wanted) for step in last)
    return with_it, without


@pytest.mark.parametrize("name", ["smooth_llm", "perplexity_filter"])
def test_suffixes_found_on_the_bare_model_do_not_work_behind_it(name: str) -> None:
    assert complied(name, "unaware") == (0, len(SEEDS))


def test_an_attacker_who_adapts_gets_through_the_perplexity_filter() -> None:
    with_it, _ = complied("perplexity_filter", "adaptive")
    assert with_it >= len(SEEDS) // 2


def test_harmless_text_passes_the_filter() -> None:
    from adversariallm.core.generation import GenerationConfig
    from adversariallm.core.rng import Rng
    from adversariallm.core.types import Conversation

    talks = [Conversation.user(text) for text in corpus()[::20]]
    replies = behind("perplexity_filter").generate(
        talks, GenerationConfig(), [Rng.root(0)] * len(talks)
    )
    assert all(r.finish_reason != "content_filter" for r in replies)
