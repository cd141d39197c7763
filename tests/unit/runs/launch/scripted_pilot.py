"""A pilot whose runs are made up: what it does is told by environment variables.

PACE_S: seconds per step. GATE: a file without which no step but the first ends. CRASH_AT:
`<folder>:<step>` kills the process there, once, or always where ALWAYS is set. FAIL: run id whose
run raises.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adversariallm.runs.launch import pilot
from adversariallm.runs.spec import RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Ending, Outcome

NUM_STEPS = 4


def execute(claim: Any) -> dict[str, Any]:
    """Make up the missing steps; says in the document which process made each."""
    steps = claim.resume().steps
    for index in range(len(steps), NUM_STEPS):
        claim.heartbeat()
        crash(index)
        if claim.run_id == os.environ.get("FAIL"):
            raise ValueError("this run is meant to fail")
        time.sleep(float(os.environ.get("PACE_S", "0")))
        while index and "GATE" in os.environ and not Path(os.environ["GATE"]).exists():
            time.sleep(0.05)
        facts = {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
        steps.append({"step": index, "execution": {"pid": os.getpid(), **facts}})
        claim.append("step", steps[-1])
    amounts = {"num_return_sequences": 1, "completions": "all"}
    return {"config": {}, "resolved": {"amounts": amounts}, "runs": [{"steps": steps}]}


def crash(index: int) -> None:
    """Kill this process the first time that the step of CRASH_AT is reached."""
    folder, _, step = os.environ.get("CRASH_AT", "").partition(":")
    if step == str(index):
        try:
            Path(folder, "crashed").touch(exist_ok="ALWAYS" in os.environ)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def one(store: Store, task: RunTask) -> Outcome:
    run_id, label = task.spec.run_id, task.spec.label
    claim = store.claim(run_id, {})
    if isinstance(claim, str):
        endings: dict[str, Ending] = {"done": "already done", "failed": "failed before"}
        return Outcome(run_id, label, endings.get(claim, "held elsewhere"))
    with claim:
        try:
            claim.publish(execute(claim))
        except ValueError as error:
            claim.fail(str(error))
            return Outcome(run_id, label, "failed", str(error))
    return Outcome(run_id, label, "done")


def work(
    store: Store,
    tasks: Sequence[RunTask],
    workshop: Any,
    *,
    on_event: Any,
    on_outcome: Callable[[Outcome], None],
    stop: Callable[[], bool],
) -> list[Outcome]:
    outcomes = []
    for task in tasks:
        if stop():
            break
        outcomes.append(one(store, task))
        on_outcome(outcomes[-1])
    return outcomes


if __name__ == "__main__":
    vars(pilot)["work"] = work
    sys.exit(pilot.main())
