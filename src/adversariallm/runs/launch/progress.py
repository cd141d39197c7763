"""How far a batch is, read from the store alone.

It asks no scheduler and no worker, so the answer is right whoever died; waiting is up to the
caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adversariallm.runs.claim import run_key
from adversariallm.runs.files import decode
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.launch.pilot import is_short
from adversariallm.runs.store import Store
from adversariallm.runs.topup import PASS
from adversariallm.runs.worker import Outcome


@dataclass(frozen=True)
class Overview:
    """How far one batch is.

    Attributes:
        name: Of the batch.
        states: Number of its runs in each state; those that nobody claimed yet are `new`.
        folder: Where its logs are.
    """

    name: str
    states: Counter[str]
    folder: Path


def overview(store: Store) -> list[Overview]:
    """Return how far every batch in a store is, by the time it was last started."""
    known = store.survey()
    found = []
    plans = sorted(store.root.glob("plans/*/tasks.jsonl"), key=lambda path: path.stat().st_mtime)
    for path in plans:
        with path.open("rb") as file:
            head = decode(file.readline(), path)
        states = Counter[str](known.get(run_id, "new") for run_id in head["ids"])
        found.append(Overview(head["name"], states, path.parent))
    return found


class Follower:
    """Reports each run of a batch once, when the store shows how it ended."""

    def __init__(self, batch: Batch, on_outcome: Callable[[Outcome], None]) -> None:
        """Start following; what is done or failed by now is not reported."""
        self._batch = batch
        self._store: Store = batch.store()
        self._on_outcome = on_outcome
        states = self._store.survey()
        ended = ("done", "failed")
        self._waiting: dict[str, str] = {}  # label by run
        self._short: dict[str, tuple[str, int]] = {}  # label and files of later completions
        for run_id, task in zip(batch.ids, batch.tasks, strict=True):
            if is_short(self._store, states, run_id, task):
                self._short[run_id] = (task.spec.label, len(self._store.top_ups(run_id)))
            elif states.get(run_id) not in ended:
                self._waiting[run_id] = task.spec.label
        self._outcomes: list[Outcome] = []

    @property
    def done(self) -> bool:
        """Whether every run has ended."""
        return not self._waiting and not self._short

    def look(self) -> None:
        """Report what has ended since the last look."""
        states = self._store.survey()
        ended = {r: states[r] for r in self._waiting if states.get(r) in ("done", "failed")}
        failed_passes = [r for r in self._short if states.get(run_key(r, PASS)) == "failed"]
        errors = {}
        if failed_passes or "failed" in ended.values():
            errors = {failure.key: failure.error for failure in self._store.failed()}
        for run_id, state in ended.items():
            label = self._waiting.pop(run_id)
            if state == "done":
                self._report(Outcome(run_id, label, "done"))
            else:
                self._report(Outcome(run_id, label, "failed", errors.get(run_id, "")))
        for run_id, (label, files) in list(self._short.items()):
            if len(self._store.top_ups(run_id)) > files:
                self._report(Outcome(run_id, label, "already done", "completions added"))
            elif run_id in failed_passes:
                error = errors.get(run_key(run_id, PASS), "")
                self._report(Outcome(run_id, label, "failed", error))
            else:
                continue
            del self._short[run_id]

    def finish(self) -> list[Outcome]:
        """Look once more, report what did not end, and return all outcomes."""
        self.look()
        states = self._store.survey()
        for run_id, label in self._waiting.items():
            state = states.get(run_id, "new")
            self._report(Outcome(run_id, label, "lost", f"not finished ({state}); repeat to go on"))
        for run_id, (label, _) in self._short.items():
            detail = "its completions were not added; repeat to go on"
            self._report(Outcome(run_id, label, "lost", detail))
        self._waiting.clear()
        self._short.clear()
        return self._outcomes

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._on_outcome(outcome)
