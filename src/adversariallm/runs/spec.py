"""What one run is: the specification whose hash is the run id, and the amounts beside it.

Plain frozen data: building it is `runs.plan`, carrying it out is `runs.execute`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from adversariallm.core.budget import Budget
from adversariallm.core.config import FrozenConfig, stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.types import Behavior

INERT: dict[str, Any] = {"inert": True}


class PluginSpec(FrozenConfig):
    """An attack or defense with its version and resolved options (semantic values only).

    Attributes:
        supplies: what a defense uses besides models: fingerprints of judges, content of data sets.
    """

    name: str
    version: int
    options: dict[str, Any] = {}
    supplies: dict[str, dict[str, Any]] = Field({}, json_schema_extra={"since": "1.0"})


class ModelSpec(FrozenConfig):
    """A model as a run sees it.

    Attributes:
        name: what the user typed: catalog name, hub id or folder.
        identity: what fixes its behavior (weights revision or content hash, adapter, dtype,
            quantization, template hash, effective system prompt, thinking mode), from
            `models.identity`.
        options: how to load it again, the `models.<name>.*` overrides in force.
    """

    name: str = Field(json_schema_extra=INERT)
    identity: dict[str, Any]
    options: dict[str, Any] = Field({}, json_schema_extra=INERT)


class BehaviorSet(FrozenConfig):
    """Named items of one dataset.

    Attributes:
        dataset: its name, `custom:<sha256>` for a user's own file.
        content_hash: hash of the dataset's content and version.
        ids: the items, in order.
        keys: content hash of each item, so that the identity does not rest on names alone.
    """

    dataset: str
    content_hash: str
    ids: tuple[str, ...]
    keys: tuple[str, ...]


class Stopping(FrozenConfig):
    """When a search ends before its last step; part of the identity."""

    loss: float | None = Field(None, description="stop after a step whose loss is at or below this")
    judge: str | None = Field(
        None, description="judge whose verdict on the step's completions stops the run"
    )
    judge_fingerprint: str | None = Field(None, description="filled in by the plan")
    threshold: float = Field(
        0.5, ge=0, le=1, description="score at or above which the judge stops the run"
    )


class Amounts(FrozenConfig):
    """How much is sampled and judged: asking for more tops up the stored run."""

    num_return_sequences: int = Field(1, ge=1, description="completions per scheduled step")
    completions: Literal["all", "last", "best", "best_so_far", "geometric", "none"] = Field(
        "all",
        description="which steps get completions; best_so_far: every step that lowers the loss",
    )
    completion_block: int | None = Field(
        None, ge=1, description="make completions every so many steps instead of at the end"
    )
    judges: tuple[str, ...] = Field(
        (), description="judges that score the stored completions afterwards"
    )
    timing: Literal["shared", "exclusive"] = Field(
        "shared",
        description="exclusive: nothing else runs meanwhile, so that seconds are fit to publish",
    )


class Parent(FrozenConfig):
    """The stored run that another run starts from.

    Attributes:
        run_id: which.
        kind: `inputs`: its stored inputs are sent again, to this run's model and with this run's
            decoding, and nothing is searched. `extend`: the search goes on behind its last step.
        made_for: the models, and the defense, that inputs sent again were made for.
    """

    run_id: str
    kind: Literal["inputs", "extend"]
    made_for: str = Field("", json_schema_extra=INERT)


class RunSpec(FrozenConfig):
    """An attack fitted on a set of behaviors and models, evaluated on a set of behaviors."""

    attack: PluginSpec
    models: tuple[ModelSpec, ...]
    defense: tuple[PluginSpec, ...] = Field((), description="in the order a question meets them")
    knowledge: Literal["unaware", "black_box", "adaptive"] = Field(
        "unaware",
        description="what the attacker sees of the defense",
        json_schema_extra={"since": "1.0"},
    )
    fit: BehaviorSet
    evaluated: BehaviorSet | None = Field(None, json_schema_extra={"since": "1.0"})
    generation: GenerationConfig
    seed: int = 0
    budget: Budget = Budget()
    stopping: Stopping = Stopping()
    helpers: dict[str, ModelSpec] = {}
    judge: PluginSpec | None = Field(None, description="the judge that gives rewards in the loop")
    assets: dict[str, str] = Field({}, description="asset id -> sha256")
    parent: Parent | None = Field(
        None, description="the run that this one starts from", json_schema_extra={"since": "1.0"}
    )
    amounts: Amounts = Field(Amounts(), json_schema_extra=INERT)
    protocol: str | None = Field(
        None,
        description="published protocol that filled in what was not typed",
        json_schema_extra=INERT,
    )
    overrides: tuple[str, ...] = Field((), json_schema_extra=INERT, description="as typed")

    def semantic(self) -> dict[str, Any]:
        """What the run id is made of."""
        out = super().semantic()
        out["generation"] = self.generation.per_sample()
        return out

    @property
    def run_id(self) -> str:
        """32 hex digits that name this run everywhere."""
        return stable_hash(self.semantic())

    @property
    def label(self) -> str:
        """A short text for tables and logs."""
        who = "+".join(m.name for m in self.models)
        what = ",".join(self.fit.ids[:2]) + (",..." if len(self.fit.ids) > 2 else "")
        shield = "".join(f" behind {d.name}" for d in self.defense)
        text = f"{self.attack.name} on {who}{shield}: {self.fit.dataset}[{what}] seed {self.seed}"
        if self.parent is None:
            return text
        how = {"inputs": "inputs of", "extend": "going on from"}[self.parent.kind]
        return f"{text}, {how} {self.parent.run_id[:8]}"


class RunTask(FrozenConfig):
    """A run together with the behaviors it needs, as a worker receives it."""

    spec: RunSpec
    fit: tuple[dict[str, Any], ...]
    evaluated: tuple[dict[str, Any], ...] = ()

    def behaviors(self) -> tuple[tuple[Behavior, ...], tuple[Behavior, ...]]:
        """The fit set and the evaluation set."""
        fit = tuple(Behavior.from_dict(b) for b in self.fit)
        return fit, tuple(Behavior.from_dict(b) for b in self.evaluated) or fit
