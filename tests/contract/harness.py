"""What the contract tests share: a run in memory, and models that count what they are asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from adversariallm.core.budget import Budget, Usage
from adversariallm.core.directions import Account
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Needs, Work
from adversariallm.core.records import RunDocument
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, Message
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.document import strip_volatile
from adversariallm.runs.execute import Resources, execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.runs.spec import Amounts, BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask

TARGET = "Sure, here is the list"


def behaviors() -> list[Behavior]:
    """A single turn, one with a system message, one with three turns."""
    talks = [
        Conversation.user("write a short story"),
        Conversation.user("the recipe for bread", system="a careful helper"),
        Conversation(
            (
                Message("user", "good music"),
                Message("assistant", "a list of names"),
                Message("user", "an honest question"),
            )
        ),
    ]
    return [
        Behavior(f"b{i}", talk, talk[talk.last_user].content, True, TARGET, "dataset")
        for i, talk in enumerate(talks)
    ]


def short(name: str) -> GenerationConfig:
    """Four tokens, decoded as the method prescribes."""
    prescribed = {**ATTACKS.load(name).INFO.generation, "max_new_tokens": 4}
    return GenerationConfig(**prescribed)


def spec(
    name: str,
    model: Any,
    fit: Sequence[Behavior],
    *,
    options: Mapping[str, Any] | None = None,
    evaluated: Sequence[Behavior] = (),
    **rest: Any,
) -> RunTask:
    """The task of one run; a tuple of models is attacked at once."""
    module = ATTACKS.load(name)
    models = model if isinstance(model, tuple) else (model,)
    chosen = {**module.INFO.quick, **(options or {})}
    amounts = Amounts(num_return_sequences=rest.pop("samples", 1))
    generation = rest.pop("generation", short(name))
    run = RunSpec(
        attack=PluginSpec(
            name=name, version=module.INFO.version, options=module.Config(**chosen).semantic()
        ),
        models=tuple(ModelSpec(name=m.name, identity=dict(m.identity())) for m in models),
        fit=_set_of(fit),
        evaluated=_set_of(evaluated) if evaluated else None,
        generation=generation,
        amounts=amounts,
        **rest,
    )
    return RunTask(
        spec=run,
        fit=tuple(b.to_dict() for b in fit),
        evaluated=tuple(b.to_dict() for b in evaluated),
    )


def _set_of(behaviors: Sequence[Behavior]) -> BehaviorSet:
    return BehaviorSet(
        dataset="contract",
        content_hash="0",
        ids=tuple(b.id for b in behaviors),
        keys=tuple(b.key for b in behaviors),
    )


def helpers_for(name: str) -> dict[str, Any]:
    """A scripted model for each helper role, a tiny one where ids or logits are needed."""
    module = ATTACKS.load(name)
    scripts = getattr(module, "EXAMPLE_REPLIES", {})
    white = module.INFO.helper_needs
    return {
        role: tiny_helper() if role in white else ScriptedModel(scripts.get(role, ["ok"]))
        for role in module.INFO.helpers
    }


@cache
def tiny_helper() -> Any:
    return tiny_model("qwen2", seed=1)


@dataclass(frozen=True)
class FixedDirection:
    vector: torch.Tensor
    layer: int = 1
    work: Work = Work(Usage(forward_passes=2, flops=1000))

    def found(self, *groups: Any, account: Account | None = None, **options: Any) -> FixedDirection:
        """Stands for the search."""
        if account is not None:
            account.ask(0)
            account.book(self.work)
        return self


def contract_model() -> Any:
    """A tiny model; random weights refuse nothing, so its refusal direction is made up."""
    model = tiny_model("llama")
    width = model.embed([0]).shape[1]
    direction = FixedDirection(torch.randn(width, generator=Rng.root(7).torch()))
    model.refusal_direction = direction.found
    return model


def resources(name: str, model: Any, **rest: Any) -> Resources:
    module = ATTACKS.load(name)
    rest.setdefault("assets", getattr(module, "EXAMPLE_ASSETS", {}))
    models = model if isinstance(model, tuple) else (model,)
    rest.setdefault("helpers", helpers_for(name))
    if module.INFO.judge and "judge" not in rest:
        rest["judge"] = lambda meter: LengthJudge()
    return Resources(models=models, **rest)


class LengthJudge:
    """Rewards answers by how many distinct letters they have: deterministic and not constant."""

    def rewards(self, conversations: Any, contexts: Any) -> list[float | None]:
        return [min(1.0, len(set(c[len(c) - 1].content)) / 26) for c in conversations]


def run(
    name: str,
    model: Any,
    fit: Sequence[Behavior],
    *,
    log: MemoryLog | None = None,
    budget: Budget | None = None,
    given: Mapping[str, Any] | None = None,
    **rest: Any,
) -> RunDocument:
    """Carry out one run in memory; `given` replaces helpers, assets or the judge."""
    task = spec(name, model, fit, budget=budget or Budget(), **rest)
    document, _ = execute(task, resources(name, model, **(given or {})), log or MemoryLog())
    return document


def stable(document: RunDocument) -> str:
    """The document without what may differ between equal runs, as text."""
    return json.dumps(strip_volatile(document.model_dump(mode="json")), sort_keys=True)


class Counting:
    """Counts the sequences that reach a model, by method, apart from the meter."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.queries: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if name not in (
            "generate",
            "losses",
            "gradient",
            "next_logits",
            "soft_losses",
            "generate_without",
        ):
            return value

        def counted(first: Any, *args: Any, **kwargs: Any) -> Any:
            rows = {"gradient": [first], "generate_without": args[0] if args else ()}.get(
                name, first
            )
            named = {k: getattr(v, "__qualname__", v) for k, v in sorted(kwargs.items())}
            extra = repr((args, named))
            for k, row in enumerate(rows):
                rng = str(args[1][k]) if name == "generate" else extra
                self.queries.append((name, f"{_plain(row)}|{rng}"))
            return value(first, *args, **kwargs)

        return counted

    @property
    def gives(self) -> Needs:
        return self._model.gives


def _plain(row: Any) -> str:
    ids = getattr(row, "ids", None)
    return repr(list(ids)) if ids is not None else repr(row)
