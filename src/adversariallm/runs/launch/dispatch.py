"""From a batch to pilots: what a command does when its launcher is not `inline`.

It blocks for local pilots and, unless asked to wait, only submits Slurm ones; both judge what
they publish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.launch.options import Launcher
from adversariallm.runs.launch.pilot import unjudged
from adversariallm.runs.worker import Outcome


@dataclass(frozen=True)
class Dispatched:
    """What became of a batch.

    Attributes:
        outcomes: How runs ended; empty where nobody waited.
        problems: Judgings that did not happen, by judge and run.
    """

    outcomes: tuple[Outcome, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)


def dispatch(
    batch: Batch,
    num_open: int,
    launcher: Launcher,
    on_outcome: Callable[[Outcome], None],
    on_note: Callable[[str], None],
) -> Dispatched:
    """Have the runs of a batch carried out and judged by pilots.

    Args:
        batch: The runs.
        num_open: Those that are not done or lack completions.
        launcher: Which pilots to start.
        on_outcome: Called once per run that ends while this waits.
        on_note: Called with what the user should know.

    Raises:
        ConfigError: The launcher cannot do what is asked.
    """
    store = batch.store()
    num_open += len(unjudged(batch, store))
    if not num_open:
        return Dispatched()
    if launcher.kind == "local":
        from adversariallm.runs.launch.pool import Pool

        outcomes = Pool(batch, launcher, on_outcome=on_outcome).run()
        return Dispatched(tuple(outcomes), _not_judged(batch))
    from adversariallm.runs.launch.slurm import follow, submit

    submission = submit(batch, launcher, num_open)
    note = f"{len(submission.jobs)} Slurm jobs submitted"
    if submission.alive:
        note += f", {submission.alive} of this command were there before"
    note += (
        f"; logs in {submission.folder}; `adversariallm status {store.root}` tells how far it is"
    )
    on_note(note)
    if not launcher.wait:
        return Dispatched()
    outcomes = follow(batch, on_outcome)
    return Dispatched(tuple(outcomes), _not_judged(batch))


def _not_judged(batch: Batch) -> dict[str, str]:
    return {
        f"{judge} on {run_id}": f"not judged, see {batch.folder}; repeat the command"
        for run_id, judge in unjudged(batch, batch.store())
    }
