"""A claimed run: the right to work on it, and what its holder may do.

Everything a holder writes carries its generation, so a holder that lost its lease without
noticing can spoil nothing.  What is in the records is the business of `runs.execute`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.errors import LostLeaseError
from adversariallm.core.records import SCHEMA_VERSION
from adversariallm.runs.files import safe_name
from adversariallm.runs.journal import Journal, Resumed
from adversariallm.runs.lease import RELEASED, Lease

if TYPE_CHECKING:
    from torch import Tensor

    from adversariallm.runs.store import Store


_log = logging.getLogger(__name__)


class StopRequested(BaseException):
    """This process was asked to stop: the run is given back with all its finished steps.

    Like KeyboardInterrupt it is no Exception, so that nothing takes it for a failed run.
    """


def run_key(run_id: str, task: str = "") -> str:
    """Return the name of a run's work: its id, or `<run id>.<task>` for a later pass."""
    return f"{safe_name(run_id)}.{safe_name(task)}" if task else safe_name(run_id)


class Claim:
    """The right to work on one run, and its journal; use it as a context manager.

    Leaving the block without `publish`, `finish` or `fail` gives the run back.
    """

    def __init__(
        self, store: Store, run_id: str, task: str, lease: Lease, journal: Journal
    ) -> None:
        """Made by `Store.claim` only."""
        self.store = store
        self.run_id = run_id
        self.task = task
        self.work = lease.work
        self.generation = lease.generation
        self._lease = lease
        self._journal = journal
        self._open = True

    def __enter__(self) -> Claim:
        """Return the claim."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the run if it is still held."""
        if self._open:
            self.release()

    @property
    def key(self) -> str:
        """Run id, or `<run id>.<task>` for a later pass."""
        return run_key(self.run_id, self.task)

    def resume(self) -> Resumed:
        """Return what earlier generations finished."""
        return self._journal.resumed

    def append(
        self, kind: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
    ) -> None:
        """Journal a finished record; when this returns, a killed process cannot lose it.

        Args:
            kind: `step` or `completion`.
            record: JSON values.
            tensors: Named tensors that belong to it.

        Raises:
            LostLeaseError: Somebody else took the run over.
            StoreError: The disk is full or read-only; earlier records are safe.
        """
        self._lease.check_soon()
        with self._still_there():
            self._journal.append(kind, record, tensors)

    def check(self) -> None:
        """Look at the files now, whether or not the process was asked to stop.

        Raises:
            LostLeaseError: Somebody else took the run over.
        """
        self._lease.check()

    def heartbeat(self) -> None:
        """Look at the files now; called between steps, so that a run ends after a whole one.

        Raises:
            LostLeaseError: Somebody else took the run over; stop and write nothing more.
            StopRequested: The process was asked to stop.
        """
        if self.store.stop():
            raise StopRequested
        self._lease.check()

    def publish(
        self,
        document: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Publish the run by renaming its complete directory, and remove its work.

        Args:
            document: Header fields (`config`, ...) and `runs`: mappings with `steps`, mappings
                each. `schema_version`, `run_id` and parts of `execution` are filled in.
            tensors: Named tensors for `tensors.safetensors`.
            files: Further files of the run's directory, by name.

        Returns:
            False when another generation's result was first; ours is dropped.

        Raises:
            LostLeaseError: Somebody else took the run over.
            StoreError: The disk is full or read-only; the journal is kept and the run can be
                claimed again.
        """
        first = {"schema_version": SCHEMA_VERSION, "run_id": self.run_id}
        attempt = {"generation": self.generation, "host": self.store.host}
        execution = {**document.get("execution", {}), **attempt}
        whole = {**first, **document, **first, "execution": execution}
        with self._still_there():
            won = self.store.publish_claimed(self, whole, tensors, files or {})
        self.finish()
        return won

    def finish(self) -> None:
        """Remove the work of a run or pass whose result is stored."""
        self._close()
        self.store.discard_work(self.work)

    def release(self) -> None:
        """Give the run back unfinished, so that the next claim need not wait."""
        self._close(RELEASED)

    def fail(self, error: str, traceback: str = "") -> None:
        """Record why this attempt failed; the run is taken again only on request.

        Args:
            error: One line.
            traceback: The whole story; no keys or tokens may be in it.
        """
        try:
            self._lease.check()
            self.store.record_failure(self.work, self.key, self.generation, error, traceback)
        except LostLeaseError as lost:  # whoever took the run over says how it ends
            _log.warning("a failure was not recorded: %s (%s)", error, lost)
        self._close()

    @contextmanager
    def _still_there(self) -> Iterator[None]:
        """Tell a lost lease from a missing file: whoever finishes removes the work directory."""
        try:
            yield
        except FileNotFoundError:
            self._lease.check()
            raise

    def _close(self, mark: Literal["released", "failed"] | None = None) -> None:
        self._open = False
        self._journal.close()
        self._lease.close(mark)
