"""More samples of a stored run: only the missing completions are made and stored beside it.

The stored document is replayed into `runs.execute` as if it were a journal, so the search is never
repeated and sample k is the same whether it was asked for at first or later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adversariallm.core.budget import Ledgers
from adversariallm.runs.execute import Event, Resources, execute
from adversariallm.runs.journal import Entry, Resumed
from adversariallm.runs.runlog import MemoryEntry
from adversariallm.runs.schedule import scheduled
from adversariallm.runs.spec import Amounts

if TYPE_CHECKING:
    import torch

    from adversariallm.runs.claim import Claim
    from adversariallm.runs.spec import RunTask
    from adversariallm.runs.store import Store


def lacking(store: Store, task: RunTask) -> bool:
    """Whether a published run has fewer completions than the task asks for."""
    run_id = task.spec.run_id
    stored = store.header(run_id).get("resolved", {}).get("amounts", {})
    wanted = task.spec.amounts
    if all(stored.get(k) == getattr(wanted, k) for k in ("num_return_sequences", "completions")):
        return False
    return _missing(store.read(run_id), wanted)


def _missing(document: Mapping[str, Any], wanted: Amounts) -> bool:
    lanes = [run["steps"] for run in document["runs"]]
    losses: list[float | None] = []
    for steps in zip(*lanes, strict=True):
        known = [s["loss"] for s in steps if s.get("loss") is not None]
        losses.append(sum(known) / len(known) if len(known) == len(steps) else None)
    return any(
        len(steps[number].get("model_completions", ())) < wanted.num_return_sequences
        for number in scheduled(wanted.completions, losses)
        for steps in lanes
    )


def top_up(
    store: Store,
    task: RunTask,
    resources: Callable[[RunTask], Resources],
    *,
    on_event: Callable[[Event], None] = lambda event: None,
) -> int:
    """Make what a published run lacks and store it beside the run.

    Args:
        store: where the run is.
        task: the run with the amounts that are wanted now.
        resources: gives the loaded models; asked only if something is missing.
        on_event: called for progress.

    Returns:
        The number of completions added; 0 where nothing is missing or another worker is at it.
    """
    if not lacking(store, task):
        return 0
    run_id = task.spec.run_id
    claim = store.claim(run_id, {"top_up": True}, task="topup", retry=True)
    if isinstance(claim, str):
        return 0
    with claim:
        document, parts = store.read(run_id), len(store.top_ups(run_id))
        log = _TopUpLog(_entries(document, store.tensor_file(run_id)), claim)
        execute(task, resources(task), log, on_event=on_event)
        if log.made:
            header = {"ledgers": _total(log.made).to_dict()}
            store.top_up(run_id, _rows(log.made), header, after=parts)
        claim.finish()
        return len(log.made)


class _TopUpLog:
    """The stored run as journal, what is made now in the journal of the claim."""

    def __init__(self, stored: Sequence[Entry], claim: Claim) -> None:
        self._stored = stored
        self._claim = claim
        before = claim.resume().of_kind("completion")
        self.made: list[Mapping[str, Any]] = [e.record for e in before]
        self._resumed = Resumed((*stored, *before))

    def resume(self) -> Resumed:
        return self._resumed

    def append(
        self,
        kind: str,
        record: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._claim.append(kind, record, tensors)
        if kind == "completion":
            self.made.append(record)

    def heartbeat(self) -> None:
        self._claim.heartbeat()


def _entries(document: Mapping[str, Any], tensor_file: Any) -> list[Entry]:
    """The journal that an execution of this document would have left."""
    tensors: dict[str, Any] = {}
    if tensor_file is not None:
        from safetensors.torch import load_file

        tensors = load_file(tensor_file)
    entries: list[Entry] = []
    for number, steps in enumerate(zip(*(r["steps"] for r in document["runs"]), strict=True)):
        held = {
            f"input.{lane}": tensors[key]
            for lane in range(len(steps))
            if (key := f"step.{number}.{lane}") in tensors
        }
        lanes = [{k: v for k, v in step.items() if k != "scores"} for step in steps]
        record = {"lanes": lanes, "state": {}, "once": [], "setup": {}, "seconds": {}}
        entries.append(MemoryEntry("step", record, None, held))
    end = {"status": document["status"], "remainder": document.get("remainder", {})}
    return [*entries, MemoryEntry("end", end)]


def _rows(made: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What `store.top_up` stores: per lane and step, the new values in the order of samples."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for record in sorted(made, key=lambda r: r["completion"]["sample"]):
        lane, step = record["lane"], record["step"]
        row = rows.setdefault(
            (lane, step),
            {"run": lane, "step": step, "append": {"model_completions": [], "completions": []}},
        )
        row["append"]["model_completions"].append(record["text"])
        row["append"]["completions"].append(record["completion"])
    return [rows[key] for key in sorted(rows)]


def _total(made: Sequence[Mapping[str, Any]]) -> Ledgers:
    total = Ledgers()
    for record in made:
        total = total + Ledgers.from_dict(record["ledgers"])
    return total
