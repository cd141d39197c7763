"""Generation-numbered leases: who may work on a run, decided by files alone.

A run in progress is a directory with `lease.<generation>` files; creating the next number with
link(2) takes the run over, so exactly one wins.  A lease does not stop an older holder from
running: it makes sure that what such a zombie writes is ignored (it only ever writes files that
carry its own generation).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from adversariallm.core.errors import LostLeaseError
from adversariallm.runs.files import (
    CorruptRunError,
    decode,
    encode,
    server_now_ns,
    touch,
    write_new,
)

State = Literal["new", "held", "expired", "released", "failed"]
LEASE = "lease"
RELEASED: Literal["released"] = "released"
FAILED: Literal["failed"] = "failed"
_log = logging.getLogger(__name__)


def numbered(kind: str, generation: int) -> str:
    """Return the name of a generation's file, for example `lease.000003`."""
    return f"{kind}.{generation:06d}"


def generations(work: Path) -> list[int]:
    """Return the generations that were ever claimed, ascending."""
    prefix = f"{LEASE}."
    names = os.listdir(work)
    return sorted(int(n[len(prefix) :]) for n in names if n.startswith(prefix))


@cache
def _boot_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def identity(host: str) -> dict[str, Any]:
    """Describe this process so that others on its host can tell whether it still lives."""
    return {
        "host": host,
        "boot": _boot_id(),
        "pid": os.getpid(),
        "ticks": _start_ticks(os.getpid()),
        "uuid": uuid.uuid4().hex,
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "slurm_restart": os.environ.get("SLURM_RESTART_COUNT"),
    }


def _died(holder: dict[str, Any], host: str) -> bool:
    if not _boot_id() or holder.get("host") != host or holder.get("boot") != _boot_id():
        return False
    return holder.get("ticks") is not None and _start_ticks(holder["pid"]) != holder["ticks"]


@dataclass(frozen=True)
class LeaseState:
    """What the newest generation of a run looks like from outside.

    Attributes:
        generation: Newest generation, 0 when nobody ever claimed the run.
        state: One of new (never claimed), held, expired (holder dead or silent for longer than
            the TTL), released (given back) or failed.
        holder: Host, pid and Slurm job of the newest generation.
    """

    generation: int
    state: State
    holder: dict[str, Any]


def ended(work: Path, generation: int) -> Literal["released", "failed"] | None:
    """Return the mark with which a generation ended; None while it runs or when it died."""
    if (work / numbered(FAILED, generation)).exists():
        return FAILED
    return RELEASED if (work / numbered(RELEASED, generation)).exists() else None


def inspect(work: Path, ttl_s: float, host: str, now_ns: int | None = None) -> LeaseState:
    """Look at the newest lease (a probe file asks for the time unless `now_ns` is given)."""
    known = generations(work)
    if not known:
        return LeaseState(0, "new", {})
    generation = known[-1]
    lease = work / numbered(LEASE, generation)
    try:
        holder = decode(lease.read_bytes(), lease)
    except CorruptRunError:
        holder = {}
    if mark := ended(work, generation):
        return LeaseState(generation, mark, holder)
    age_ns = (server_now_ns(work) if now_ns is None else now_ns) - lease.stat().st_mtime_ns
    state: State = "expired" if age_ns >= ttl_s * 1e9 or _died(holder, host) else "held"
    return LeaseState(generation, state, holder)


def default_host() -> str:
    """Return the name under which this machine holds leases."""
    return socket.gethostname()


class Lease:
    """One generation's hold on a run, kept alive by a thread until it is closed or lost."""

    def __init__(self, work: Path, generation: int, ttl_s: float, content: bytes) -> None:
        """Start keeping a lease alive that `take` has just created."""
        self.work = work
        self.generation = generation
        self._path = work / numbered(LEASE, generation)
        self._content = content
        self._interval_s = ttl_s / 4
        self._checked_at = time.monotonic()
        self._lost = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(
        cls, work: Path, generation: int, ttl_s: float, host: str, durable: bool
    ) -> Lease | None:
        """Create the lease of a generation; None when somebody else was quicker."""
        me = encode({**identity(host), "generation": generation})
        if not write_new(work / numbered(LEASE, generation), me, durable):
            return None
        return cls(work, generation, ttl_s, me)

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._beat()
            except LostLeaseError as lost:
                self._lost = str(lost)
                return
            except OSError:  # a full disk or a server that is away: the next beat may succeed
                continue

    def _beat(self) -> None:
        name = self.work.name
        try:
            newest = generations(self.work)[-1]
            ours = self._path.read_bytes() == self._content
            if newest == self.generation and ours:
                touch(self._path)
        except (FileNotFoundError, IndexError):
            raise LostLeaseError(f"{name}: the run was finished or removed by others") from None
        if newest != self.generation or not ours:
            raise LostLeaseError(
                f"{name}: generation {newest} took the run over from {self.generation}"
            )
        self._checked_at = time.monotonic()

    def check(self) -> None:
        """Look at the files now and renew the lease.

        Raises:
            LostLeaseError: A newer generation exists or the run is gone.
        """
        if self._lost:
            raise LostLeaseError(self._lost)
        self._beat()

    def check_soon(self) -> None:
        """Do what `check` does, but only when the last look is older than a quarter of the TTL."""
        if self._lost:
            raise LostLeaseError(self._lost)
        if time.monotonic() - self._checked_at >= self._interval_s:
            self._beat()

    def close(self, mark: Literal["released", "failed"] | None = None) -> None:
        """Stop renewing; without a mark the lease expires."""
        self._stop.set()
        self._thread.join()
        if mark is None:
            return
        try:
            self._beat()
            (self.work / numbered(mark, self.generation)).touch()
        except (LostLeaseError, OSError) as error:
            _log.warning("%s expires, not marked %s: %s", self.work.name, mark, error)
