"""Every defense around the small guarded model: equal by seed, whatever the batch, all work booked.

`benchmarks/defenses.py` measures there what defenses do to suffixes, to harmless questions and to
the bill.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from adversariallm.core.budget import Ledgers, Usage
from adversariallm.core.errors import ModelError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS, DEFENSES
from adversariallm.core.protocols import Verdict
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, digest
from adversariallm.datasets import load_dataset
from adversariallm.models.loading import load_model
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.shields import defended
from adversariallm.runs.spec import (
    Amounts,
    BehaviorSet,
    ModelSpec,
    PluginSpec,
    RunSpec,
    RunTask,
)

pytestmark = pytest.mark.slow
SHORT = GenerationConfig(max_new_tokens=12, temperature=0.7)


class Coin:
    """Scores a conversation by its content alone."""

    threshold = 0.5

    def verdicts(self, conversations: Any) -> list[Verdict]:
        return [
            Verdict(int(digest(c.to_dicts(), 4), 16) / 0xFFFF, usage=Usage(queries=1, flops=5))
            for c in conversations
        ]


@cache
def model(name: str) -> Any:
    return load_model(name)


def options_of(name: str) -> PluginSpec:
    module = DEFENSES.load(name)
    config = module.Config(**module.INFO.quick)
    return PluginSpec(name=name, version=1, options=config.semantic())


def protected(name: str) -> Any:
    return defended(
        model("smollm2-guarded"),
        [options_of(name)],
        helpers={"defense": model("smollm2-135m")},
        judge=lambda judge: Coin(),
        texts=lambda ids: dict.fromkeys(ids, "[]"),
    )


@pytest.mark.parametrize("name", DEFENSES.names())
def test_replies_are_equal_by_seed_and_whatever_the_batch(name: str) -> None:
    try:
        shielded = protected(name)
    except ModelError as error:
        pytest.skip(f"this model cannot be defended so: {error}")
    talks = [b.conversation for b in load_dataset("starter_benign", idx=[0, 1])]
    talks.append(Conversation.user("Tell me about rivers.", system="Answer in one sentence."))
    rngs = [Rng.root(3).child(i) for i in range(3)]
    together = shielded.generate(talks, SHORT, rngs)
    alone = [shielded.generate([t], SHORT, [r])[0] for t, r in zip(talks, rngs, strict=True)]
    for a, b in zip(together, alone, strict=True):
        assert (a.text, a.ids, a.error, a.undefended, a.raw) == (
            b.text, b.ids, b.error, b.undefended, b.raw
        )  # fmt: skip
        assert (a.usage, a.defense_usage) == (b.usage, b.defense_usage)
        assert a.usage.queries == 1


@pytest.mark.parametrize("attack", ["direct", "bon", "gcg"])
@pytest.mark.parametrize("name", ["system_prompt", "smooth_llm", "perplexity_filter"])
def test_a_run_keeps_both_answers_and_its_ledgers_add_up(name: str, attack: str) -> None:
    [behavior] = load_dataset("starter_harmful", idx=0)
    module, bare = ATTACKS.load(attack), model("smollm2-guarded")
    shielded = protected(name)
    spec = RunSpec(
        attack=PluginSpec(
            name=attack, version=1, options=module.Config(**module.INFO.quick).semantic()
        ),
        models=(ModelSpec(name=bare.name, identity=dict(bare.identity())),),
        defense=(options_of(name),),
        fit=BehaviorSet(
            dataset="starter_harmful", content_hash="0", ids=(behavior.id,), keys=(behavior.key,)
        ),
        generation=SHORT,
        amounts=Amounts(num_return_sequences=2, completions="last"),
    )
    task = RunTask(spec=spec, fit=(behavior.to_dict(),))
    resources = Resources(models=(shielded,), attacked=(bare,), bare=(bare,))
    document, _ = execute(task, resources, MemoryLog())
    steps = document.runs[0].steps
    assert len(steps[-1].completions) == 2
    assert all(c.undefended is not None for c in steps[-1].completions)
    total = Ledgers.from_dict(document.remainder)
    for step in steps:
        total = total + Ledgers.from_dict(step.ledgers)
    whole = Ledgers.from_dict(document.ledgers)
    for phase in ("optimization", "sampling", "diagnosis"):
        assert total.total(phase) == whole.total(phase)
    assert whole.total("sampling", role="model").queries == 2
    setup = whole.total("setup", role="defense").queries
    assert setup == (shielded.preparation.queries if name == "perplexity_filter" else 0)
