"""A pilot: a process that loads models once, then claims runs of a batch until none is left.

Started as `python -m adversariallm.runs.launch.pilot PLAN` by the local launcher and through
submitit by the Slurm one.  A signal or the end of its time makes it finish the step, give its
runs back and end.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from adversariallm.core.budget import Meter
from adversariallm.runs.campaign import Watcher, judge_runs
from adversariallm.runs.claim import StopRequested, run_key
from adversariallm.runs.execute import Event
from adversariallm.runs.judging import judge_id_of, settled
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.spec import RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.topup import PASS, lacking
from adversariallm.runs.tracking import Tracking, make_hooks
from adversariallm.runs.worker import Outcome, Workshop, work

if TYPE_CHECKING:
    from adversariallm.runs.judging import Judged

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_OPEN = ("new", "expired", "released")
_MARGIN_S = 20.0  # what publishing and leaving may take


class Stopper:
    """Decides when to stop: after the step on a signal, before a run that would not fit the time.

    Attributes:
        reason: Why to leave between two steps, empty while there is no reason.
        enough: Why to claim nothing more, empty while there is no reason.
    """

    def __init__(self, end_s: float | None = None, parent: int | None = None) -> None:
        """Watch a time limit, given as a time of `time.time()`, and a parent process."""
        self.end_s = end_s
        self.reason = ""
        self.enough = ""
        self._parent = parent
        self._durations_s: list[float] = []
        self._local = threading.local()

    def install(self) -> None:
        """Take SIGTERM and SIGUSR2 as requests to stop."""
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._asked)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

    def now(self) -> bool:
        """Return whether to leave even in the middle of a run."""
        if not self.reason:
            if self.end_s is not None and time.time() > self.end_s - _MARGIN_S:
                self.reason = "time limit"
            elif self._parent is not None and os.getppid() != self._parent:
                self.reason = "the launcher is gone"
        return bool(self.reason)

    def before_claim(self) -> bool:
        """Return whether to claim nothing more; asked in the thread that would do the run."""
        if self.end_s is not None and self._durations_s:
            median_s = statistics.median(self._durations_s)
            if time.time() + median_s > self.end_s - _MARGIN_S:
                self.enough = f"time limit: a run takes {median_s:.0f} s"
        self._local.started_s = time.monotonic()
        return self.now() or bool(self.enough)

    def finished_run(self) -> None:
        """Remember how long the run of this thread took."""
        self._durations_s.append(time.monotonic() - self._local.started_s)


@dataclass
class Flight:
    """What one pilot did.

    Attributes:
        stopped: Why it stopped before everything was done; empty when nothing was left to do.
        done: Runs it published.
        failed: Runs that failed, with their reasons.
        problems: Judges that failed, by judge and run.
        progressed: Whether a step, completion or run was finished.
    """

    stopped: str = ""
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    progressed: bool = False


class _Log(Watcher):
    """Writes progress to the pilot's log and into its flight."""

    def __init__(self, flight: Flight, stopper: Stopper, tracking: Tracking) -> None:
        self._flight = flight
        self._stopper = stopper
        self._tracking = tracking

    def event(self, task: RunTask, event: Event) -> None:
        self._flight.progressed |= event.kind != "resumed"
        self._tracking.event(task, event)
        _log.info("%s: %s %d %s", task.spec.label, event.kind, event.step, dict(event.values))

    def outcome(self, outcome: Outcome) -> None:
        _log.info("%s: %s %s", outcome.label, outcome.ending, outcome.detail)
        self._tracking.outcome(outcome)
        if _moved(outcome):
            self._flight.done += outcome.ending == "done"
            self._flight.progressed = True
            self._stopper.finished_run()
        elif outcome.ending == "failed":
            self._flight.failed[outcome.run_id] = outcome.detail

    def judged(self, judge: str, run_id: str, result: Judged | Exception) -> None:
        self._flight.progressed = True
        _log.info("judged %s with %s: %s", run_id, judge, result)


def fly(
    batch: Batch,
    *,
    slot: int = 0,
    slots: int = 1,
    stopper: Stopper | None = None,
    workshop: Workshop | None = None,
) -> Flight:
    """Work on a batch until nothing is left that this process could do.

    Args:
        batch: The runs.
        slot: Which of the pilots this is; each begins elsewhere in the batch.
        slots: Number of pilots.
        stopper: Says when to leave early.
        workshop: Models that are loaded already.
    """
    stopper = stopper or Stopper()
    flight = Flight()
    store = batch.store(stopper.now)
    watcher = _Log(flight, stopper, Tracking(store, make_hooks(batch.tracking)))
    workshop = workshop or Workshop(judges=batch.judges)
    try:
        while todo := _rotated(_open_tasks(batch, store), slot, slots):
            outcomes = work(
                store,
                todo,
                workshop,
                on_event=watcher.event,
                on_outcome=watcher.outcome,
                stop=stopper.before_claim,
            )
            if stopper.reason or stopper.enough:
                raise StopRequested
            if not any(outcome.ending == "failed" or _moved(outcome) for outcome in outcomes):
                break  # the rest is held by others, or was lost to them
        pairs = _rotated(unjudged(batch, store), slot, slots)
        for judge in dict.fromkeys(judge for _, judge in pairs):
            for pair in (pair for pair in pairs if pair[1] == judge):
                if stopper.now():
                    raise StopRequested
                flight.problems |= judge_runs(store, [pair], workshop, watcher, view=batch.view)
    except StopRequested:
        flight.stopped = stopper.reason or stopper.enough
    return flight


def _moved(outcome: Outcome) -> bool:
    """Whether something was stored: the run, or completions beside it."""
    return outcome.ending == "done" or (outcome.ending == "already done" and bool(outcome.detail))


def _open_tasks(batch: Batch, store: Store) -> list[RunTask]:
    """Runs that nobody did yet, and stored ones that lack completions."""
    states = store.survey()
    return [
        task
        for run_id, task in zip(batch.ids, batch.tasks, strict=True)
        if states.get(run_id, "new") in _OPEN or is_short(store, states, run_id, task)
    ]


def is_short(store: Store, states: Mapping[str, str], run_id: str, task: RunTask) -> bool:
    """Whether a stored run lacks completions that nobody is making."""
    if states.get(run_id) != "done":
        return False
    return states.get(run_key(run_id, PASS), "new") in _OPEN and lacking(store, task)


def _rotated(items: Sequence[_T], slot: int, slots: int) -> list[_T]:
    """Begin at a place of one's own, so that pilots load different models and rarely collide."""
    start = len(items) * slot // slots
    return [*items[start:], *items[:start]]


def unjudged(batch: Batch, store: Store) -> list[tuple[str, str]]:
    """Return run and judge for stored runs of a batch that a judge has not scored in full."""
    own = [
        (run_id, judge)
        for run_id, task in zip(batch.ids, batch.tasks, strict=True)
        for judge in task.spec.amounts.judges
    ]
    pairs = [*own, *batch.pairs]
    ids = _judge_ids(batch, {judge for _, judge in pairs})
    return [
        (run_id, judge)
        for run_id, judge in pairs
        if store.is_published(run_id) and not settled(store, run_id, ids[judge])
    ]


def _judge_ids(batch: Batch, names: set[str]) -> dict[str, str]:
    workshop = Workshop(judges=batch.judges)
    judges = {name: workshop.judge_factory(name)(Meter()) for name in sorted(names)}
    return {name: judge_id_of(judge, batch.view) for name, judge in judges.items()}


def configure_process(cpus: int | None = None) -> None:
    """Set up logging to standard error and the number of threads, before torch is imported."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    if cpus is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, str(cpus))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a pilot of the local launcher; 0 when nothing is left, 1 when runs failed, 3 stopped."""
    parser = argparse.ArgumentParser(prog="pilot")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--slots", type=int, default=1)
    given = parser.parse_args(arguments)
    configure_process()
    stopper = Stopper(parent=os.getppid())
    stopper.install()
    flight = fly(Batch.load(given.plan), slot=given.slot, slots=given.slots, stopper=stopper)
    _log.info("pilot %d ends: %s", given.slot, flight)
    if flight.stopped:
        return 3
    return int(bool(flight.failed or flight.problems))


if __name__ == "__main__":
    sys.exit(main())
