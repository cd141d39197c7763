"""What a stored run gives to later ones: its task, its steps as a journal, its inputs, its state.

It reads documents and tensors; which later run they are for is the business of `runs.passes`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adversariallm.core.budget import Ledgers
from adversariallm.core.errors import NeedsError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.records import StepRecord
from adversariallm.core.types import Candidate, Conversation, ModelInput, Task
from adversariallm.runs.journal import Entry, Resumed
from adversariallm.runs.runlog import MemoryEntry, RunLog
from adversariallm.runs.spec import RunSpec, RunTask

if TYPE_CHECKING:
    import torch

    from adversariallm.core.protocols import Context
    from adversariallm.runs.store import Store

STATE = "state.safetensors"
"""The file beside a published run with what its search needs to go on."""


def spec_of(header: Mapping[str, Any]) -> RunSpec:
    """The specification that a stored run was carried out under.

    Raises:
        NeedsError: it was not carried out here (an import), so its settings are not known in full.
    """
    if not header.get("resolved"):
        raise NeedsError(
            f"run {header['run_id']} was imported: its settings are not known in full, so it can "
            "be judged and reported, but not gone on from"
        )
    return RunSpec.model_validate(header["resolved"])


def task_of(document: Mapping[str, Any]) -> RunTask:
    """The task that a stored run came from; see `spec_of`."""
    spec = spec_of(document)
    count = len(document["runs"]) // len(spec.models)
    evaluated = [run["behavior"] for run in document["runs"][:count]]
    fitted = tuple(row for row in evaluated if row["id"] in spec.fit.ids)
    return RunTask(
        spec=spec, fit=fitted, evaluated=() if spec.evaluated is None else tuple(evaluated)
    )


def lanes_of(document: Mapping[str, Any]) -> list[tuple[dict[str, Any], ...]]:
    """The steps of a run, each with its record per model and evaluated behavior."""
    return list(zip(*(run["steps"] for run in document["runs"]), strict=True))


def stored_input(record: StepRecord, embeddings: torch.Tensor | None) -> ModelInput:
    """What a step sent: its conversation with exactly its ids, or its embeddings."""
    if record.model_input is None:
        return ModelInput(embeddings=embeddings)
    ids = record.model_input_tokens
    messages = record.model_input[:-1] if record.prefill else record.model_input
    return ModelInput(
        conversation=Conversation.from_dicts(messages),
        ids=None if ids is None else tuple(ids),
        prefill=record.prefill,
    )


def tensors_of(path: Path | None) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; none where there is no file."""
    if path is None:
        return {}
    from safetensors.torch import load_file

    return load_file(path)


def entries_of(document: Mapping[str, Any], tensor_file: Path | None) -> list[Entry]:
    """The journal that an execution of this document would have left, up to its last step."""
    tensors = tensors_of(tensor_file)
    entries: list[Entry] = []
    for number, steps in enumerate(lanes_of(document)):
        held = {
            f"input.{lane}": tensors[key]
            for lane in range(len(steps))
            if (key := f"step.{number}.{lane}") in tensors
        }
        lanes = [{k: v for k, v in step.items() if k != "scores"} for step in steps]
        record = {"lanes": lanes, "state": {}, "once": [], "setup": {}, "seconds": {}}
        entries.append(MemoryEntry("step", record, None, held))
    return entries


def end_of(document: Mapping[str, Any]) -> Entry:
    """The journal's last entry: how the search ended."""
    remainder = document.get("remainder", {})
    return MemoryEntry("end", {"status": document["status"], "remainder": remainder})


def no_search(task: Task, ctx: Context) -> Generator[Candidate]:
    """A search that has ended: the steps are there, only completions are wanted."""
    yield from ()


class StoredInputs:
    """A search that yields the inputs of a stored run, one step after the other.

    Attributes:
        exact: whether the ids and embeddings are valid for the model that is asked; the text is
            tokenized for it otherwise.
    """

    def __init__(self, document: Mapping[str, Any], tensor_file: Path | None, exact: bool) -> None:
        """Read the inputs; the lanes of the first model stand for all."""
        self._document = document
        self._tensors = tensors_of(tensor_file)
        self.exact = exact

    def __call__(self, task: Task, ctx: Context) -> Generator[Candidate]:
        """Yield the candidates behind the last finished step."""
        first = 0 if ctx.state is None else ctx.state.step + 1
        count = len(task.evaluated)
        for number, lanes in list(enumerate(lanes_of(self._document)))[first:]:
            inputs = [self._input(number, lane, lanes[lane]) for lane in range(count)]
            losses = [row["loss"] for row in lanes if row.get("loss") is not None]
            mean = sum(losses) / len(losses) if len(losses) == len(lanes) else None
            yield Candidate(
                inputs=tuple(inputs) * len(ctx.models),
                losses=(None,) * (count * len(ctx.models)),
                note={"source": {"step": number, "loss": mean}},
            )

    def _input(self, number: int, lane: int, row: Mapping[str, Any]) -> ModelInput:
        record = StepRecord.model_validate({k: v for k, v in row.items() if k != "scores"})
        given = stored_input(record, self._tensors.get(f"step.{number}.{lane}"))
        if self.exact:
            return given
        return ModelInput(conversation=given.conversation, prefill=given.prefill)


class Continued:
    """A log that begins with entries from elsewhere and remembers the newest step's state."""

    def __init__(self, log: RunLog, before: Sequence[Entry] = ()) -> None:
        """Put `before` in front of what the log already holds."""
        self._log = log
        self._resumed = Resumed((*before, *log.resume().entries))
        self._sums = Ledgers()  # set-up, and seconds of the search
        self._last: Entry | None = None
        for entry in self._resumed.of_kind("step"):
            self._see(entry)

    def resume(self) -> Resumed:
        """What is finished."""
        return self._resumed

    def append(
        self,
        kind: str,
        record: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Hand a record on."""
        self._log.append(kind, record, tensors)
        if kind == "step":
            self._see(MemoryEntry(kind, dict(record), None, dict(tensors or {})))

    def heartbeat(self) -> None:
        """See `RunLog`."""
        self._log.heartbeat()

    def _see(self, step: Entry) -> None:
        self._last = step
        setup = Ledgers.from_dict(step.record["setup"])
        self._sums = self._sums + replace(setup, seconds=step.record["seconds"])

    def state_file(self) -> bytes | None:
        """What the search needs to go on behind the newest step, as a safetensors file."""
        if self._last is None:
            return None
        from safetensors.torch import save

        record = self._last.record
        facts = {
            "state": record["state"],
            "once": record["once"],
            "setup": self._sums.to_dict(),
            "seconds": dict(self._sums.seconds),
        }
        tensors = self._last.tensors().items()
        held = {k: t.detach().cpu().contiguous() for k, t in tensors if k.startswith("state.")}
        return bytes(save(held, metadata={"journal": json.dumps(facts)}))


def raisable(attack: str) -> str | None:
    """The option of an attack that may be raised afterwards: more of it only adds steps.

    A field says so with `json_schema_extra={"extends": True}`; None where no field does.
    """
    for name, field in ATTACKS.load(attack).Config.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("extends"):
            return str(name)
    return None


def resumable(store: Store, run_id: str) -> list[Entry]:
    """The steps of a stored run as a journal that its search can go on behind.

    Completions that were added later stay out: their cost is beside the run and on no step, and
    what is wanted of them is made again, equal.

    Raises:
        NeedsError: the state behind its last step was not stored.
        StoreError: there is no such run.
    """
    path = store.run_dir(run_id) / STATE
    if not path.exists():
        raise NeedsError(f"run {run_id}: {path} is gone: its search cannot go on")
    from safetensors import safe_open

    entries = entries_of(store.published(run_id), store.tensor_file(run_id))
    last = entries.pop()
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["journal"])
        held = {name: file.get_tensor(name) for name in file.keys()}
    # the rules of the last step were applied when the run was made
    record = {**last.record, **facts, "decided": True}
    return [*entries, MemoryEntry("step", record, None, {**last.tensors(), **held})]
