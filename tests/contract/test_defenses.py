"""What every defense promises, by name: a new one is tested the moment its file exists.

Runs are small and in memory, on a tiny random model; the model, its helpers and its judge are
deterministic, so equal runs are equal to the last byte.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.budget import Ledgers, Usage
from adversariallm.core.errors import NeedsError
from adversariallm.core.plugins import ATTACKS, DEFENSES
from adversariallm.core.protocols import Needs, Verdict
from adversariallm.core.records import RunDocument
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, digest
from adversariallm.models.fakes import ScriptedModel
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.shields import Shield, check_knowledge, check_stack, defended
from adversariallm.runs.spec import PluginSpec

sys.path.insert(0, str(Path(__file__).parent))
from harness import (  # noqa: E402  -- beside this file
    behaviors,
    contract_model,
    helpers_for,
    short,
    spec,
    stable,
    tiny_helper,
)

NAMES = DEFENSES.names()
KNOWLEDGE = {
    "direct": ("unaware",),
    "bon": ("unaware", "black_box"),
    "crescendo": ("unaware", "black_box"),
    "gcg": ("unaware", "adaptive"),
    "pgd": ("unaware", "adaptive"),
}
CASES = [(name, a, k) for name in NAMES for a, known in KNOWLEDGE.items() for k in known]


class CoinJudge:
    """Scores a conversation by its content alone; about half are at or above the threshold."""

    threshold = 0.5

    def verdicts(self, conversations: Sequence[Conversation]) -> list[Verdict]:
        return [
            Verdict(int(digest(c.to_dicts(), 4), 16) / 0xFFFF, usage=Usage(queries=1, flops=5))
            for c in conversations
        ]


@cache
def tiny() -> Any:
    return contract_model()


@cache
def shield(name: str) -> Shield:
    module = DEFENSES.load(name)
    return Shield(module.INFO, module.Config(**module.INFO.quick))


@cache
def protected(*names: str) -> Any:
    """The tiny model behind a stack, outermost first."""
    specs = [PluginSpec(name=n, version=1, options=shield(n).config.semantic()) for n in names]
    roles = {role for n in names for role in shield(n).wanted.helpers}
    return defended(
        tiny(),
        specs,
        helpers={role: tiny_helper() for role in roles},
        judge=lambda name: CoinJudge(),
        texts=lambda ids: dict.fromkeys(ids, "a text"),
    )


def refused(name: str, attack: str, knowledge: str) -> bool:
    info = ATTACKS.load(attack).INFO
    try:
        check_stack([shield(name)], {"tiny": tiny().gives})
        check_knowledge(info, knowledge, [shield(name)], soft=info.modality == "embedding")
    except NeedsError:
        return True
    return False


def carry_out(
    name: str, attack: str, knowledge: str, *, seed: int = 0, log: MemoryLog | None = None
) -> RunDocument:
    model = protected(name)
    plugin = PluginSpec(name=name, version=1, options=shield(name).config.semantic())
    task = spec(
        attack, tiny(), behaviors()[:1], defense=(plugin,), knowledge=knowledge, seed=seed,
        samples=2,
    )  # fmt: skip
    resources = Resources(
        models=(model,),
        attacked=(tiny(),) if knowledge == "unaware" else (model,),
        bare=(tiny(),),
        helpers=helpers_for(attack),
        assets=getattr(ATTACKS.load(attack), "EXAMPLE_ASSETS", {}),
    )
    return execute(task, resources, log or MemoryLog())[0]


document = cache(carry_out)


@cache
def bare_document(attack: str) -> RunDocument:
    task = spec(attack, tiny(), behaviors()[:1], samples=2)
    resources = Resources(models=(tiny(),), helpers=helpers_for(attack))
    return execute(task, resources, MemoryLog())[0]


def runs_of(name: str) -> list[tuple[str, str]]:
    return [(a, k) for n, a, k in CASES if n == name and not refused(n, a, k)]


@pytest.mark.parametrize("name", NAMES)
class TestDefense:
    def test_both_answers_of_every_completion_are_stored(self, name: str) -> None:
        for attack, knowledge in runs_of(name):
            steps = document(name, attack, knowledge).runs[0].steps
            completions = [c for s in steps for c in s.completions]
            assert completions, (attack, knowledge)
            soft = attack == "pgd" and knowledge == "adaptive"
            assert all(c.undefended is not None for c in completions) or soft, (attack, knowledge)

    def test_the_undefended_answers_are_those_of_an_undefended_run(self, name: str) -> None:
        for attack in ("direct", "gcg"):
            shielded, plain = document(name, attack, "unaware"), bare_document(attack)
            for mine, other in zip(shielded.runs[0].steps, plain.runs[0].steps, strict=True):
                assert mine.model_input_tokens == other.model_input_tokens
                assert mine.loss == other.loss
                assert [c.undefended for c in mine.completions] == other.model_completions
                assert not mine.flags

    def test_the_steps_add_up_to_the_run_and_extra_work_is_the_defenses(self, name: str) -> None:
        for attack, knowledge in runs_of(name):
            found = document(name, attack, knowledge)
            total = Ledgers.from_dict(found.remainder)
            for step in found.runs[0].steps:
                total = total + Ledgers.from_dict(step.ledgers)
            whole = Ledgers.from_dict(found.ledgers)
            for phase in ("optimization", "sampling", "diagnosis"):
                assert total.total(phase) == whole.total(phase), (attack, knowledge, phase)
            sampled = [c for s in found.runs[0].steps for c in s.completions if not c.in_loop]
            assert whole.total("sampling", role="model").queries == len(sampled)

    def test_equal_seeds_give_equal_runs(self, name: str) -> None:
        for attack, knowledge in [("bon", "black_box"), ("gcg", "unaware"), ("gcg", "adaptive")]:
            if not refused(name, attack, knowledge):
                again = carry_out(name, attack, knowledge)
                assert stable(again) == stable(document(name, attack, knowledge)), attack

    def test_the_batch_changes_no_reply(self, name: str) -> None:
        model, talks = protected(name), [b.conversation for b in behaviors()]
        rngs = [Rng.root(5).child(i) for i in range(len(talks))]
        together = model.generate(talks, short("bon"), rngs)
        alone = [
            model.generate([t], short("bon"), [r])[0] for t, r in zip(talks, rngs, strict=True)
        ]
        backwards = model.generate(talks[::-1], short("bon"), rngs[::-1])[::-1]
        for a, b, c in zip(together, alone, backwards, strict=True):
            assert (a.text, a.ids, a.error, a.undefended, a.raw) == (
                b.text, b.ids, b.error, b.undefended, b.raw
            )  # fmt: skip
            assert (a.usage, a.defense_usage) == (b.usage, b.defense_usage)
            assert (a.text, a.usage, a.defense_usage) == (c.text, c.usage, c.defense_usage)

    def test_a_run_cut_anywhere_continues_to_the_same_end(self, name: str) -> None:
        whole = MemoryLog()
        want = stable(carry_out(name, "bon", "black_box", log=whole))
        for cut in range(0, len(whole.entries), 3):
            log = MemoryLog(list(whole.entries[:cut]))
            assert stable(carry_out(name, "bon", "black_box", log=log)) == want, cut

    def test_what_does_not_pass_is_refused_with_the_reason(self, name: str) -> None:
        info = DEFENSES.load(name).INFO
        for attack in KNOWLEDGE:
            row = ATTACKS.load(attack).INFO
            if row.needs & ~info.passes:
                with pytest.raises(NeedsError, match=f"defense '{name}' lets through only"):
                    check_knowledge(row, "adaptive", [shield(name)], soft=False)
        if info.rewrites or Needs.EMBEDDINGS not in info.passes:
            with pytest.raises(NeedsError, match="'pgd' sends embeddings"):
                check_knowledge(ATTACKS.load("pgd").INFO, "unaware", [shield(name)], soft=True)

    def test_a_model_that_gives_too_little_is_refused_with_the_reason(self, name: str) -> None:
        wanted = shield(name).wanted
        needed = wanted.model | wanted.inside
        if needed == Needs.TEXT:
            check_stack([shield(name)], {"api": Needs.TEXT})
            return
        with pytest.raises(
            NeedsError, match=f"defense '{name}' needs .*model 'api' gives only text"
        ):
            check_stack([shield(name)], {"api": Needs.TEXT})

    def test_the_identity_tells_defense_version_and_options(self, name: str) -> None:
        found = protected(name).identity()
        assert found["model"] == dict(tiny().identity())
        assert found["defense"]["name"] == name
        assert found["defense"]["options"] == shield(name).config.semantic()

    def test_the_header_tells_source_and_deviations(self, name: str) -> None:
        module = DEFENSES.load(name)
        assert module.INFO.name == name
        assert "Source:" in (module.__doc__ or "")
        assert "Deviations:" in (module.__doc__ or "")
        assert module.INFO.source
        for field in module.Config.model_fields.values():
            assert field.description


def test_stacks_meet_a_question_in_the_order_of_the_list() -> None:
    inner = ScriptedModel(["fine"])
    specs = [
        PluginSpec(name="system_prompt", version=1, options={"text": "first"}),
        PluginSpec(name="self_reminder", version=1),
    ]
    model = defended(inner, specs, helpers={}, judge=lambda n: CoinJudge(), texts=lambda ids: {})
    model.generate([Conversation.user("ask")], short("direct"), [Rng.root(0)])
    [sent] = inner.calls
    assert sent[0].role == "system"
    assert sent[0].content.startswith("first")
    assert "ask" in sent[1].content
    assert model.identity()["defense"]["name"] == "system_prompt"


@pytest.mark.parametrize("outer", [n for n in NAMES if n != "smooth_llm"])
def test_every_defense_stands_around_another(outer: str) -> None:
    if shield(outer).wanted.inside & ~DEFENSES.load("smooth_llm").INFO.passes:
        with pytest.raises(NeedsError, match="put this defense last in the list"):
            check_stack([shield(outer), shield("smooth_llm")], {"tiny": tiny().gives})
        return
    check_stack([shield(outer), shield("smooth_llm")], {"tiny": tiny().gives})
    model = protected(outer, "smooth_llm")
    [reply] = model.generate([behaviors()[0].conversation], short("bon"), [Rng.root(0)])
    inside = [m["name"] for m in reply.raw.get("defense", ())]
    assert reply.usage.queries == 1
    assert inside.count("smooth_llm") <= 1
    copies = shield("smooth_llm").config.copies  # type: ignore[attr-defined]
    assert reply.defense_usage.queries >= (copies - 1 if "smooth_llm" in inside else 0)
