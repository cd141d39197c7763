"""A throw-away Slurm cluster on this machine, one for the session; needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 120


@dataclass(frozen=True)
class Cluster:
    """A running cluster: four nodes of four claimed CPUs, partitions low, main and high.

    Attributes:
        state: Everything of it.
        calm: Set when no daemon is going to be restarted any more.
    """

    state: Path
    calm: threading.Event = field(default_factory=threading.Event)

    def configure(self, *, preempt_signal: bool) -> None:
        """Start what does not run; jobs are told of preemption by USR2 where asked for."""
        knobs = {
            "SLURM_TEST_NODES": "4",
            "SLURM_TEST_PREEMPT_SIGNAL": str(int(preempt_signal)),
        }
        command = ["bash", str(HERE / "start-slurm.sh"), str(self.state)]
        subprocess.run(
            command,
            env={**os.environ, **knobs},
            check=True,
            timeout=LIMIT_S,
            stdout=subprocess.DEVNULL,
        )

    def ask(self, *command: str) -> str:
        """Run a Slurm command and return what it prints."""
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        return done.stdout.strip()

    def pid(self, daemon: str) -> int:
        """Return the process id of `slurmctld` or `slurmd.<node>`."""
        return int((self.state / "run" / f"{daemon}.pid").read_text(encoding="ascii"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a throw-away Slurm cluster needs root")
    if shutil.which("apt-get") is None and shutil.which("slurmctld") is None:
        pytest.skip("Slurm is neither installed nor installable with apt-get")
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    found.state.chmod(0o755)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(found.state / "slurm.conf")
    try:
        found.configure(preempt_signal=False)
        yield found
    finally:
        subprocess.run(
            ["bash", str(HERE / "stop-slurm.sh"), str(found.state), "--purge"],
            check=True,
            timeout=LIMIT_S,
            stdout=subprocess.DEVNULL,
        )
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
