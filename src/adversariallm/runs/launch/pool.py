"""The local launcher: one pilot process for each worker of this machine, restarted when it crashes.

It shares out cores and GPUs and watches the store; which run is whose the pilots settle among
themselves.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adversariallm.core.errors import ConfigError
from adversariallm.runs.launch.batch import Batch
from adversariallm.runs.launch.options import Launcher
from adversariallm.runs.launch.progress import Follower
from adversariallm.runs.worker import Outcome

PILOT = (sys.executable, "-m", "adversariallm.runs.launch.pilot")
_LOOK_EVERY_S = 0.5
_LEAVE_WITHIN_S = 60.0
_ENDED = (0, 1)  # exit codes of a pilot that found nothing more to do
_log = logging.getLogger(__name__)


@dataclass
class _Worker:
    slot: int
    process: subprocess.Popen[bytes]
    crashes: int = 0


class Pool:
    """Pilot processes of one batch."""

    def __init__(
        self,
        batch: Batch,
        launcher: Launcher,
        *,
        command: Sequence[str] = PILOT,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """Prepare to work on a batch.

        Args:
            batch: What to do.
            launcher: Number of workers, their GPUs, restarts.
            command: Starts a pilot; plan and slot follow.
            on_outcome: Called once per run, when the store shows how it ended.

        Raises:
            ConfigError: More GPUs are asked for than there are.
        """
        self._batch = batch
        self._command = tuple(command)
        self._max_restarts = launcher.max_restarts
        self._slots = max(1, min(launcher.workers, len(batch.tasks) + len(batch.pairs)))
        self._environments = environments(self._slots, launcher.gpus_per_node, os.environ)
        self._follower = Follower(batch, on_outcome)
        self._workers: list[_Worker] = []

    def run(self) -> list[Outcome]:
        """Work until all runs are done or failed, or until no worker gets any further."""
        plan = self._batch.save()
        self._workers = [_Worker(slot, self._start(plan, slot)) for slot in range(self._slots)]
        try:
            while self._workers:
                time.sleep(_LOOK_EVERY_S)
                self._follower.look()
                self._workers = [w for w in self._workers if self._still_needed(w, plan)]
        finally:
            self._stop()
        return self._follower.finish()

    def _start(self, plan: Path, slot: int) -> subprocess.Popen[bytes]:
        log = self._batch.folder / f"pilot-{slot}.log"
        arguments = (str(plan), "--slot", str(slot), "--slots", str(self._slots))
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environments[slot],
                start_new_session=True,  # a Ctrl-C reaches the pilots only through `_stop`
            )

    def _still_needed(self, worker: _Worker, plan: Path) -> bool:
        """Return whether to keep a worker; one that crashed is started again."""
        code = worker.process.poll()
        if code is None:
            return True
        if code in _ENDED:
            # what a crashed neighbor held is taken up by whoever is still there
            return False
        worker.crashes += 1
        log = self._batch.folder / f"pilot-{worker.slot}.log"
        if worker.crashes > self._max_restarts:
            _log.warning(
                "worker %d crashed too often (exit code %d), see %s", worker.slot, code, log
            )
            return False
        _log.warning("worker %d crashed (exit code %d) and is started again", worker.slot, code)
        worker.process = self._start(plan, worker.slot)
        return True

    def _stop(self) -> None:
        """Ask the pilots to finish their step and leave; end those that do not."""
        running = [w.process for w in self._workers if w.process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _LEAVE_WITHIN_S
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environments(
    slots: int, gpus_per_worker: int, outer: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return each worker's environment: its share of the cores and its own GPUs.

    Two processes that both use all cores are several times slower than with a share each.

    Raises:
        ConfigError: There are fewer GPUs than asked for.
    """
    cores = len(os.sched_getaffinity(0))
    threads = str(max(1, cores // slots))
    shared = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    found = [{**outer, **shared} for _ in range(slots)]
    if gpus_per_worker:
        gpus = visible_gpus(outer)
        if len(gpus) < slots * gpus_per_worker:
            raise ConfigError(
                f"launcher.workers={slots} with launcher.gpus_per_node={gpus_per_worker} needs "
                f"{slots * gpus_per_worker} GPUs, there are {len(gpus)}; use fewer workers"
            )
        for slot, environment in enumerate(found):
            own = gpus[slot * gpus_per_worker : (slot + 1) * gpus_per_worker]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return found


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs this process may use: CUDA_VISIBLE_DEVICES, else all of the machine."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [gpu.strip() for gpu in listed.split(",") if gpu.strip()]
    devices = [p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(devices, key=int)
