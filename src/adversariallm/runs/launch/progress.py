"""How far a batch is, read from the store alone.

It asks no scheduler and no worker, so the answer is right whoever died; waiting is up to the
caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adversariallm.runs.files import decode
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.store import Store
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
        self._waiting = {
            run_id: task.spec.label
            for run_id, task in zip(batch.ids, batch.tasks, strict=True)
            if states.get(run_id) not in ended
        }
        self._outcomes: list[Outcome] = []

    @property
    def done(self) -> bool:
        """Whether every run has ended."""
        return not self._waiting

    def look(self) -> None:
        """Report what has ended since the last look."""
        states = self._store.survey()
        ended = {r: states[r] for r in self._waiting if states.get(r) in ("done", "failed")}
        errors = {}
        if "failed" in ended.values():
            errors = {failure.key: failure.error for failure in self._store.failed()}
        for run_id, state in ended.items():
            label = self._waiting.pop(run_id)
            if state == "done":
                self._report(Outcome(run_id, label, "done"))
            else:
                self._report(Outcome(run_id, label, "failed", errors.get(run_id, "")))

    def finish(self) -> list[Outcome]:
        """Look once more, report what did not end, and return all outcomes."""
        self.look()
        states = self._store.survey()
        for run_id, label in self._waiting.items():
            state = states.get(run_id, "new")
            self._report(Outcome(run_id, label, "lost", f"not finished ({state}); repeat to go on"))
        self._waiting.clear()
        return self._outcomes

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._on_outcome(outcome)
