"""Runs of chat attacks on scripted models, each call counted by the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from adversariallm.core.budget import Budget, Usage
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.records import RunDocument
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, Reply
from adversariallm.models.fakes import ScriptedModel
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.spec import BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask

Script = Callable[[Conversation, Rng], str | Reply]


class Paid(ScriptedModel):
    """A scripted model whose replies cost one query; keeps streams and schemas as well."""

    def __init__(self, script: Any, *, name: str = "scripted") -> None:
        super().__init__(script, name=name)
        self.rngs: list[Rng] = []
        self.schemas: list[Any] = []
        self.generations: list[GenerationConfig] = []

    def generate(
        self, inputs: Any, generation: Any, rngs: Any, *, json_schema: Any = None
    ) -> list[Reply]:
        self.rngs += list(rngs)
        self.schemas.append(json_schema)
        self.generations.append(generation)
        found = super().generate(inputs, generation, rngs)
        return [replace(r, usage=Usage(queries=1, tokens_generated=1)) for r in found]


def in_turn(*answers: str | Reply) -> Script:
    """Answers in order of arrival; the last one again once they run out."""
    left = list(answers)

    def script(talk: Conversation, rng: Rng) -> str | Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def behavior(goal: str = "name three birds", **rest: Any) -> Behavior:
    return Behavior("b", Conversation.user(goal), goal, True, **rest)


def play(
    name: str,
    target: ScriptedModel,
    helpers: Mapping[str, ScriptedModel],
    *,
    asked: Behavior | None = None,
    log: MemoryLog | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> RunDocument:
    """The document of one run."""
    module = ATTACKS.load(name)
    item = asked or behavior()
    spec = RunSpec(
        attack=PluginSpec(
            name=name,
            version=module.INFO.version,
            options=module.Config(**options).semantic(),
        ),
        models=(ModelSpec(name=target.name, identity={"name": target.name}),),
        fit=BehaviorSet(dataset="t", content_hash="0", ids=(item.id,), keys=(item.key,)),
        generation=GenerationConfig(max_new_tokens=8),
        budget=budget or Budget(),
    )
    resources = Resources(
        models=(target,), helpers=helpers, assets=getattr(module, "EXAMPLE_ASSETS", {})
    )
    task = RunTask(spec=spec, fit=(item.to_dict(),))
    return execute(task, resources, log or MemoryLog())[0]


def steps(document: RunDocument) -> list[Any]:
    return document.runs[0].steps


def queries(document: RunDocument) -> dict[str, int]:
    """Queries by role, all phases together."""
    out: dict[str, int] = {}
    for rows in document.ledgers.values():
        for role, usage in rows.items():
            out[role] = out.get(role, 0) + int(usage.get("queries", 0))
    return out
