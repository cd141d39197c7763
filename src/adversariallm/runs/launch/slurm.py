"""The Slurm launcher: arrays of pilot jobs through submitit.

Slurm supplies processes and nothing else: job ids, job states and submitit's result files are
never trusted, and `sacct` is never asked.  A pilot that is warned gives its runs back and has
itself requeued.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError

from adversariallm.core.errors import ConfigError
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.launch.options import Launcher
from adversariallm.runs.launch.pilot import Flight, Stopper, configure_process, fly, unjudged
from adversariallm.runs.launch.progress import Follower
from adversariallm.runs.worker import Outcome

_log = logging.getLogger(__name__)
_DEFAULT_MAX_ARRAY = 1001
_IDLE_RESTARTS = 3  # requeues in a row without any progress
_WAIT_FOR_END_S = 600.0
_LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class Submission:
    """What was handed to Slurm.

    Attributes:
        jobs: Ids of the new jobs, `<array>_<task>`.
        alive: Pilots of the same batch that were queued or running before.
        folder: Where the logs are.
    """

    jobs: tuple[str, ...]
    alive: int
    folder: Path


def submit(batch: Batch, launcher: Launcher, num_open: int) -> Submission:
    """Submit as many pilots as are missing.

    Args:
        batch: What to do.
        launcher: Number of workers and what each needs.
        num_open: Runs and judgings that are left; more pilots would have nothing to do.

    Raises:
        ConfigError: There is no Slurm here, or it refuses the job.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "launcher.kind=slurm: there is no sbatch on this machine; use launcher.kind=local, "
            "or run the command on a login node of the cluster"
        )
    plan = batch.save()
    folder = batch.folder / "slurm"
    alive = count_alive(job_name(batch)) or 0
    missing = max(0, min(launcher.workers, num_open) - alive)
    jobs: list[str] = []
    executor = _executor(batch, launcher, folder)
    limit = launcher.array_limit or max_array_size() - 1
    pilot = Pilot(plan, missing, launcher.timeout_min, launcher.cpus_per_task)
    try:
        for start in range(0, missing, limit):
            slots = range(start, min(start + limit, missing))
            jobs += [job.job_id for job in executor.map_array(pilot, slots)]
    except (FailedJobError, subprocess.CalledProcessError) as error:
        raise ConfigError(_refusal(str(error), launcher)) from None
    return Submission(tuple(jobs), alive, folder)


def _executor(batch: Batch, launcher: Launcher, folder: Path) -> submitit.SlurmExecutor:
    options: dict[str, Any] = {
        "job_name": job_name(batch),
        "time": launcher.timeout_min,
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "cpus_per_task": launcher.cpus_per_task,
        "gpus_per_node": launcher.gpus_per_node or None,
        "mem": None if launcher.mem_gb is None else f"{int(launcher.mem_gb * 1024)}MB",
        "setup": list(launcher.setup) or None,
        "signal_delay_s": launcher.signal_delay_s,
        "array_parallelism": launcher.workers,
        "stderr_to_stdout": True,
        "additional_parameters": {"requeue": True},
    }
    if launcher.container:
        options["srun_args"] = [f"--container-image={launcher.container}"]
    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=1000)
    executor.update_parameters(**{k: v for k, v in options.items() if v is not None})
    return executor


def _refusal(text: str, launcher: Launcher) -> str:
    reasons = re.findall(r"(?:sbatch: )?error: (.*)", text) or [text.strip().splitlines()[-1]]
    message = f"Slurm refused the job: {'; '.join(dict.fromkeys(reasons))}."
    asked = {
        name: getattr(launcher, name)
        for name in ("partition", "account", "qos", "constraint", "gpus_per_node", "mem_gb")
        if getattr(launcher, name)
    }
    given = ", ".join(f"launcher.{name}={value}" for name, value in asked.items())
    partitions = (_ask(["sinfo", "-h", "-o", "%R"]) or "").split()
    return f"{message} Given: {given or 'no options'}. Partitions here: {', '.join(partitions)}."


def job_name(batch: Batch) -> str:
    """Return the name that all pilots of a batch carry in the queue."""
    return f"adversariallm-{batch.name}"


def count_alive(name: str) -> int | None:
    """Return how many jobs of that name wait or run; None when the controller does not answer."""
    asked = ["squeue", "-h", "-r", "-n", name, "-u", getpass.getuser(), "-o", "%T"]
    answer = _ask(asked)
    return None if answer is None else len(answer.splitlines())


def max_array_size() -> int:
    """Return the site's MaxArraySize."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]) or "")
    return int(match.group(1)) if match else _DEFAULT_MAX_ARRAY


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def follow(batch: Batch, on_outcome: Callable[[Outcome], None]) -> list[Outcome]:
    """Wait until all is done and judged or no pilot is left, reporting runs as they end."""
    follower = Follower(batch, on_outcome)
    store = batch.store()
    while count_alive(job_name(batch)) != 0:
        time.sleep(_LOOK_EVERY_S)
        follower.look()
        if follower.done and not unjudged(batch, store):
            break
    return follower.finish()


@dataclass(frozen=True)
class Pilot:
    """What runs inside a Slurm job; submitit pickles it, so it holds a path and numbers only.

    Attributes:
        plan: File of the batch.
        slots: Number of pilots.
        timeout_min: Time limit of the job.
        cpus: Cores of the job.
    """

    plan: Path
    slots: int
    timeout_min: int
    cpus: int

    def __call__(self, slot: int) -> str:
        """Work on the batch; the results are in the store, only a word is returned."""
        started_s = time.time()
        configure_process(self.cpus)
        _remove_leftovers()
        end_s = float(os.environ.get("SLURM_JOB_END_TIME", started_s + self.timeout_min * 60))
        stopper = Stopper(end_s)
        stopper.install()
        flight = fly(Batch.load(self.plan), slot=slot, slots=self.slots, stopper=stopper)
        _log.info("pilot %d ends: %s", slot, flight)
        if flight.stopped:
            _leave(flight)
        return "stopped" if flight.stopped else "finished"

    def checkpoint(self, slot: int) -> DelayedSubmission:
        """Start anew after a signal that came before ours were set up; called by submitit."""
        return DelayedSubmission(self, slot)


def _leave(flight: Flight) -> None:
    """Have the job requeued where that is on us, then wait for Slurm to end this process."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if not flight.progressed and restarts >= _IDLE_RESTARTS:
        _log.warning("no progress since %d restarts: not requeued", restarts)
        return
    deadline = time.monotonic() + _WAIT_FOR_END_S
    if flight.stopped != "SIGTERM":  # SIGTERM is a preemption, which requeues by itself, or scancel
        job = submitit.JobEnvironment().job_id
        while subprocess.run(["scontrol", "requeue", job], check=False).returncode:
            if time.monotonic() > deadline:
                return
            time.sleep(5)
    # a job whose process ends in the grace period counts as finished and would not come back
    while time.monotonic() < deadline:
        time.sleep(1)


def _remove_leftovers() -> None:
    """Remove what a kill during submitit's result write leaves: it would fail the next attempt."""
    result = submitit.JobEnvironment().paths.result_pickle
    result.with_suffix(result.suffix + ".save_tmp").unlink(missing_ok=True)
