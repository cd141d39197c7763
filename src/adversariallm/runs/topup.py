"""More samples of a stored run: only the missing completions are made and stored beside it.

The stored document is replayed into `runs.execute` as if it were a journal, so the search is never
repeated and sample k is the same whether it was asked for at first or later.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adversariallm.core.budget import Ledgers
from adversariallm.core.errors import LostLeaseError
from adversariallm.runs.execute import Event, Resources, execute, steering_loss
from adversariallm.runs.journal import Entry, Resumed
from adversariallm.runs.schedule import scheduled
from adversariallm.runs.spec import Amounts
from adversariallm.runs.stored import end_of, entries_of

if TYPE_CHECKING:
    import torch

    from adversariallm.runs.claim import Claim
    from adversariallm.runs.spec import RunTask
    from adversariallm.runs.store import Store


PASS = "topup"
"""The name under which a run is claimed while completions are added to it."""


def lacking(store: Store, task: RunTask) -> bool:
    """Whether a published run has fewer completions than the task asks for."""
    run_id, wanted = task.spec.run_id, task.spec.amounts
    headers = [store.header(run_id).get("resolved", {}), *(t.header for t in store.top_ups(run_id))]
    if any(_covers(header.get("amounts", {}), wanted) for header in headers):
        return False
    return _missing(store.read(run_id), wanted)


def _covers(stored: Mapping[str, Any], wanted: Amounts) -> bool:
    """Whether amounts that were reached are enough; spares reading thousands of whole runs."""
    schedules = (wanted.completions, "all")
    enough = stored.get("num_return_sequences", 0) >= wanted.num_return_sequences
    return wanted.completions == "none" or (enough and stored.get("completions") in schedules)


def _missing(document: Mapping[str, Any], wanted: Amounts) -> bool:
    lanes = [run["steps"] for run in document["runs"]]
    losses: list[float | None] = []
    for steps in zip(*lanes, strict=True):
        found = [steering_loss(s.get("loss"), s.get("note", {})) for s in steps]
        known = [loss for loss in found if loss is not None]
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
    retry: bool = True,
) -> int:
    """Make what a published run lacks and store it beside the run.

    Args:
        store: where the run is.
        task: the run with the amounts that are wanted now.
        resources: gives the loaded models; asked only if something is missing.
        on_event: called for progress.
        retry: try again where this failed before.

    Returns:
        The number of completions added; 0 where nothing is missing or another worker is at it.

    Raises:
        Exception: whatever went wrong; it is kept with the store's failures, the run stays.
    """
    if not lacking(store, task):
        return 0
    run_id = task.spec.run_id
    loaded = resources(task)
    claim = store.claim(run_id, {"top_up": True}, task=PASS, retry=retry)
    if isinstance(claim, str):
        return 0
    with claim:
        try:
            added = _add(store, task, loaded, claim, on_event)
        except LostLeaseError:
            raise
        except Exception as error:
            claim.fail(f"adding completions: {error}", traceback.format_exc())
            raise
        claim.finish()
        return added


def _add(
    store: Store,
    task: RunTask,
    resources: Resources,
    claim: Claim,
    on_event: Callable[[Event], None],
) -> int:
    run_id = task.spec.run_id
    document, parts = store.read(run_id), len(store.top_ups(run_id))
    stored = [*entries_of(document, store.tensor_file(run_id)), end_of(document)]
    log = _TopUpLog(stored, claim)
    execute(task, resources, log, on_event=on_event)
    if log.made:
        amounts = task.spec.amounts
        header = {
            "ledgers": _total(log.made).to_dict(),
            "amounts": {
                "num_return_sequences": amounts.num_return_sequences,
                "completions": amounts.completions,
            },
        }
        store.top_up(run_id, _rows(log.made), header, after=parts)
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
