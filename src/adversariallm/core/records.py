"""The stored schema: the paper's Table 6, extended, with a schema version.

A document is one run; its `runs` has an entry per evaluated behavior, each with its steps. How the
bytes reach the disk is the business of `runs.store`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from adversariallm.core.budget import LedgerRows

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of the stored records: closed, so that a typing error cannot hide in a file."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), ser_json_inf_nan="null")


class CompletionRecord(Record):
    """Facts about one completion; its text is in `model_completions` at the same index."""

    sample: int = Field(description="sample index: equal index, equal random stream")
    ids: list[int] | None = Field(None, description="generated ids with the stop token kept")
    finish_reason: str = "stop"
    reasoning: str | None = None
    log_probs: list[float] | None = None
    in_loop: bool = Field(
        False, description="obtained by the search itself, booked as optimization"
    )
    error: str | None = Field(
        None, description="why there is no usable text; such a completion is never scored"
    )
    undefended: str | None = Field(
        None, description="what the bare model said, where a defense changed it"
    )
    raw: dict[str, Any] = Field(default_factory=dict)


class StepRecord(Record):
    """One step for one evaluated behavior."""

    step: int
    loss: float | None = None
    model_input: list[dict[str, str]] | None = Field(None, description="the conversation sent")
    model_input_tokens: list[int] | None = Field(None, description="the ids sent")
    model_input_embeddings: str | None = Field(None, description="file#tensor of the rows sent")
    prefill: str = Field("", description="what the assistant had already said in the input")
    prefill_judged: bool = Field(False, description="judges read prefill and continuation together")
    model_completions: list[str] = Field(default_factory=list)
    completions: list[CompletionRecord] = Field(default_factory=list)
    scores: dict[str, dict[str, list[Any]]] = Field(
        default_factory=dict,
        description="judge -> key -> one value per completion; joined when read",
    )
    flops: int | None = Field(
        0, description="optimization only, as in the paper; null: unknown (an endpoint took part)"
    )
    time_taken: float = Field(0.0, description="optimization seconds of this step")
    ledgers: LedgerRows = Field(
        default_factory=dict, description="phase -> role -> usage of this step"
    )
    flags: list[str] = Field(default_factory=list)
    note: dict[str, Any] = Field(default_factory=dict)
    execution: dict[str, Any] = Field(
        default_factory=dict, description="host facts; differ between equal runs"
    )


class BehaviorRun(Record):
    """One evaluated behavior with all its steps."""

    behavior: dict[str, Any]
    model: str = Field("", description="name of the model that was evaluated")
    original_prompt: list[dict[str, str]]
    steps: list[StepRecord] = Field(default_factory=list)
    total_time: float = 0.0


class RunDocument(Record):
    """One run."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    config: dict[str, Any] = Field(description="the semantic configuration; its hash is the run id")
    resolved: dict[str, Any] = Field(
        default_factory=dict, description="everything in force, amounts included"
    )
    provenance: dict[str, Any] = Field(default_factory=dict)
    status: str = Field("done", description="done | stopped:<reason>")
    ledgers: LedgerRows = Field(default_factory=dict, description="setup + steps + remainder")
    remainder: LedgerRows = Field(
        default_factory=dict, description="work of a step that a limit cut off"
    )
    runs: list[BehaviorRun] = Field(default_factory=list)
    total_time: float = 0.0
    execution: dict[str, Any] = Field(default_factory=dict)
