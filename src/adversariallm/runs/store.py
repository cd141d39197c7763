"""The run store: claim a run, journal its steps, publish it once, and put later passes beside it.

It is the queue and the truth for every launcher, made of files only; layout and the promises it
needs of a file system are in docs/store.md.  It deliberately does not know what a step, a score
or a model is.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.errors import SchemaError, StoreError
from adversariallm.core.records import SCHEMA_VERSION
from adversariallm.runs import document as doc
from adversariallm.runs import lease as leases
from adversariallm.runs.claim import Claim, run_key
from adversariallm.runs.cleaning import collect
from adversariallm.runs.files import (
    CorruptRunError,
    decode,
    encode,
    explained,
    fsync_dir,
    rename_directory,
    safe_name,
    server_now_ns,
    shards,
    write_file,
    write_new,
)
from adversariallm.runs.journal import Journal, has_progress
from adversariallm.runs.lease import FAILED, RELEASED, Lease

if TYPE_CHECKING:
    pass

Status = Literal["done", "held", "expired", "released", "failed", "new"]
Refusal = Literal["done", "held", "failed"]
TENSORS = "tensors.safetensors"
_LAYOUT = 1
_MAX_DEATHS = 3  # of a run's workers before it counts as failed
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why an attempt at a run failed.

    Attributes:
        key: Run id, or `<run id>.<task>` for a later pass.
        generation: The attempt.
        error: One line.
        traceback: The whole story.
        path: The file that holds it.
    """

    key: str
    generation: int
    error: str
    traceback: str
    path: Path


class Store:
    """A directory of runs that any number of processes on any number of hosts may use at once."""

    def __init__(
        self,
        root: Path | str,
        *,
        ttl_s: float = 120.0,
        compression: Literal["none", "zstd"] = "none",
        durable: bool = True,
        host: str | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open a store; nothing is written before the first claim.

        Args:
            root: Directory; it need not exist.
            ttl_s: Seconds of silence after which a holder counts as dead.  Leases are renewed
                four times as often. Keep it above the attribute cache of a network file system
                (60 s by default on NFS).
            compression: How `run.json` is published.
            durable: fsync what is published, and steps once a second; False only for tests.
            host: Name under which leases are held; the machine's by default.
            stop: Asked at every heartbeat; True ends the claims of this process between two steps.

        Raises:
            SchemaError: The directory holds a store of another layout.
        """
        self.root = Path(root)
        self.ttl_s = ttl_s
        self.compression = compression
        self.durable = durable
        self.host = host or leases.default_host()
        self.stop = stop
        self._prepared = False
        marker = self.root / "store.json"
        if marker.exists():
            layout = decode(marker.read_bytes(), marker).get("layout")
            if layout != _LAYOUT:
                raise SchemaError(
                    f"{self.root} is a store of layout {layout!r}; this release uses {_LAYOUT}. "
                    "Use the release that made it, or another directory (out=DIR)."
                )

    # Where things are

    def run_dir(self, run_id: str) -> Path:
        """Return the directory of a published run, whether it exists or not."""
        return self.root / "runs" / safe_name(run_id)[:2] / run_id

    def _work_dir(self, key: str) -> Path:
        return self.root / "work" / key[:2] / key

    def _prepare(self) -> None:
        if self._prepared:
            return
        with explained("create the store", self.root):
            for part in ("runs", "work", "failed", "trash"):
                (self.root / part).mkdir(parents=True, exist_ok=True)
            marker = self.root / "store.json"
            if not marker.exists():
                write_new(marker, encode({"layout": _LAYOUT}) + b"\n", self.durable)
        self._prepared = True

    # Looking

    def is_published(self, run_id: str) -> bool:
        """Return whether the run's file is there (it may still turn out to be damaged)."""
        return doc.run_file(self.run_dir(run_id)) is not None

    def runs(self) -> Iterator[str]:
        """Iterate over the ids of all published runs, sorted."""
        for shard in shards(self.root / "runs"):
            with os.scandir(shard) as entries:
                yield from sorted(e.name for e in entries if not e.name.startswith("."))

    def status(self, run_id: str, task: str = "") -> Status:
        """Return how far a run, or a later pass over it, is; nothing is changed."""
        if not task and self.is_published(run_id):
            return "done"
        return self._state(self._work_dir(run_key(run_id, task)), None)

    def survey(self) -> dict[str, Status]:
        """Return the status of every run and pass that the store knows, by key."""
        found: dict[str, Status] = {}
        now_ns = self.now_ns()
        for shard in shards(self.root / "work"):
            for work in shard.iterdir():
                found[work.name] = self._state(work, now_ns)
        found.update(dict.fromkeys(self.runs(), "done"))
        return found

    def now_ns(self) -> int:
        """Return the file server's time, this host's where the store may only be read."""
        try:
            return server_now_ns(self.root / "work")
        except OSError:  # a store that may only be read
            return time.time_ns()

    def _state(self, work: Path, now_ns: int | None) -> Status:
        try:
            return leases.inspect(work, self.ttl_s, self.host, now_ns or self.now_ns()).state
        except (FileNotFoundError, NotADirectoryError):
            return "new"

    def failed(self) -> list[Failure]:
        """Return the newest failure of each run or pass that is failed now."""
        wanted = {key for key, status in self.survey().items() if status == "failed"}
        newest: dict[str, Failure] = {}
        for shard in shards(self.root / "failed"):
            for path in sorted(shard.glob("*.json")):
                value = decode(path.read_bytes(), path)
                if value["key"] in wanted:
                    newest[value["key"]] = Failure(
                        value["key"], value["generation"], value["error"], value["traceback"], path
                    )
        return list(newest.values())

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with each published run that cannot be read, by run id."""
        found: dict[str, str] = {}
        for run_id in self.runs():
            try:
                self.read(run_id)
            except StoreError as error:
                found[run_id] = str(error)
        return found

    # Reading

    def header(self, run_id: str) -> dict[str, Any]:
        """Read the header of a published run."""
        return doc.read_header(self._existing(run_id))

    def text(self, run_id: str) -> bytes:
        """Return the bytes of `run.json`, whichever way it is stored."""
        return doc.read_text(self._existing(run_id))

    def read(self, run_id: str) -> dict[str, Any]:
        """Return the whole document of a run, later completions and all scores joined in.

        Raises:
            StoreError: There is no such run.
            CorruptRunError: A file is cut off or was edited.
            SchemaError: A file has another schema version.
        """
        document = self.published(run_id)
        doc.join(document, self.top_ups(run_id), self.scores(run_id))
        return document

    def published(self, run_id: str) -> dict[str, Any]:
        """Return a run's document as it was published; errors as in `read`."""
        return doc.read_document(self._existing(run_id))

    def scores(self, run_id: str, judge_id: str | None = None) -> list[doc.Beside]:
        """Return the score files of a run, by judge and part."""
        parts = doc.parts(self.run_dir(run_id), f"scores.{judge_id or '*'}")
        return [doc.read_beside(path) for path in parts]

    def has_scores(self, run_id: str, judge_id: str) -> bool:
        """Return whether a judge has scored a run, at least what was there at the time."""
        return bool(doc.parts(self.run_dir(run_id), f"scores.{judge_id}"))

    def top_ups(self, run_id: str) -> list[doc.Beside]:
        """Return the files with completions that were added later, in order."""
        return [doc.read_beside(path) for path in doc.parts(self.run_dir(run_id), "completions")]

    def tensor_file(self, run_id: str) -> Path | None:
        """Return the run's safetensors file, None when it has no tensors."""
        path = self.run_dir(run_id) / TENSORS
        return path if path.exists() else None

    def _existing(self, run_id: str) -> Path:
        path = doc.run_file(self.run_dir(run_id))
        if path is None:
            raise StoreError(
                f"{self.root} has no run {run_id}; `adversariallm runs list` shows all"
            )
        return path

    # Claiming

    def claim(
        self, run_id: str, config: Any, *, task: str = "", retry: bool = False
    ) -> Claim | Refusal:
        """Try to become the one that works on a run.

        Args:
            run_id: Hash of the semantic configuration.
            config: Kept beside the journal for whoever looks at an unfinished run.
            task: Name of a later pass over a published run, for example `judge.<judge-id>`; empty
                for the run itself. A pass must look whether its result exists after it has won
                the claim.
            retry: Take a run that failed before.

        Returns:
            The claim; or `done`, `held` (somebody else works on it) or `failed` (and `retry` is
            false).

        Raises:
            StoreError: The store cannot be written.
        """
        key = run_key(run_id, task)
        self._prepare()
        work = self._work_dir(key)
        for _ in range(20):
            if not task and self._is_sound(run_id):
                return "done"
            try:
                with explained("claim a run", work):
                    work.mkdir(parents=True, exist_ok=True)
                    won = self._take(work, key, retry)
                if not isinstance(won, Lease):
                    return won
                if not task and self.is_published(run_id):  # between our two looks
                    won.close()
                    self.discard_work(work)
                    return "done"
                return self._start(run_id, task, won, config)
            except (FileNotFoundError, NotADirectoryError):
                continue  # the directory was moved away under us: the run was just finished
        raise StoreError(f"{work} keeps changing: could not claim it in 20 attempts; try again")

    def _take(self, work: Path, key: str, retry: bool) -> Lease | Refusal:
        state = leases.inspect(work, self.ttl_s, self.host)
        if state.state == "held":
            return "held"
        if state.state == "expired" and not retry and self._is_deadly(work, key, state.generation):
            return "failed"
        if state.state == FAILED and not retry:
            return "failed"
        taken = Lease.take(work, state.generation + 1, self.ttl_s, self.host, self.durable)
        return taken or "held"

    def _is_deadly(self, work: Path, key: str, generation: int) -> bool:
        """Record a failure when the newest holders all died before they finished anything."""
        newest = range(generation, generation - _MAX_DEATHS, -1)
        died = [
            g for g in newest if g > 0 and not leases.ended(work, g) and not has_progress(work, g)
        ]
        if len(died) < _MAX_DEATHS:
            return False
        error = (
            f"its worker died {_MAX_DEATHS} times in a row before a step was finished; "
            "it may need more memory than there is"
        )
        self.record_failure(work, key, generation, error, "")
        return True

    def record_failure(
        self, work: Path, key: str, generation: int, error: str, traceback: str
    ) -> None:
        """Keep why a generation failed and mark it failed."""
        path = self.root / "failed" / key[:2] / f"{key}.{generation:06d}.json"
        value = {"key": key, "generation": generation, "error": error, "traceback": traceback}
        with explained("record a failure", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_new(path, encode({**value, "host": self.host}) + b"\n", self.durable)
            (work / leases.numbered(FAILED, generation)).touch()

    def reopen(self, run_id: str, task: str = "") -> None:
        """Let a failed run or pass be claimed again, once, by whoever comes first."""
        work = self._work_dir(run_key(run_id, task))
        if self.status(run_id, task) == "failed":
            generation = leases.generations(work)[-1]
            with explained("reopen a failed run", work):
                (work / leases.numbered(leases.RELEASED, generation)).touch()
                (work / leases.numbered(FAILED, generation)).unlink(missing_ok=True)

    def _start(self, run_id: str, task: str, lease: Lease, config: Any) -> Claim:
        try:
            with explained("claim a run", lease.work):
                write_new(lease.work / "config.json", encode(config) + b"\n", self.durable)
            journal = Journal(lease.work, lease.generation, SCHEMA_VERSION, self.durable)
        except BaseException:
            lease.close(RELEASED)
            raise
        return Claim(self, run_id, task, lease, journal)

    def _is_sound(self, run_id: str) -> bool:
        """Return whether the run is published; what is damaged is set aside to run again."""
        directory = self.run_dir(run_id)
        try:
            path = doc.run_file(directory)
            if path is not None:
                doc.read_header(path)
                return True
            if not directory.exists():
                return False
        except CorruptRunError as error:
            _log.warning("%s", error)
        self.set_aside(run_id)
        return False

    def set_aside(self, run_id: str) -> Path:
        """Move a published directory to `corrupt/`, where nothing reads or deletes it."""
        source = self.run_dir(run_id)
        target = self.root / "corrupt" / f"{run_id}.{uuid.uuid4().hex[:8]}"
        with explained("set a damaged run aside", source):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, target)
        _log.warning("set the damaged %s aside to %s", source, target)
        return target

    # Publishing

    def publish_claimed(
        self,
        claim: Claim,
        document: Mapping[str, Any],
        tensors: Any,
        files: Mapping[str, bytes],
    ) -> bool:
        """Move a complete document into place, for `Claim.publish`; False when second."""
        final = self.run_dir(claim.run_id)
        staged = claim.work / f"publish.{claim.generation:06d}.{uuid.uuid4().hex}"
        try:
            with explained("publish a run", final):
                staged.mkdir()
                self._stage(staged, document, tensors, files)
                final.parent.mkdir(parents=True, exist_ok=True)
                claim.check()
                return rename_directory(staged, final, self.durable)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _stage(
        self,
        staged: Path,
        document: Mapping[str, Any],
        tensors: Any,
        files: Mapping[str, bytes],
    ) -> None:
        header, body = doc.encode_document(document)
        if self.compression == "zstd":
            write_file(staged / doc.COMPRESSED, doc.compress(header, body), self.durable)
        else:
            write_file(staged / doc.PLAIN, header + body, self.durable)
        if tensors:
            from safetensors.torch import save

            whole = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            write_file(staged / TENSORS, save(whole), self.durable)
        for name, data in files.items():
            write_file(staged / safe_name(name), data, self.durable)
        if self.durable:
            fsync_dir(staged)

    def write_scores(
        self,
        run_id: str,
        judge_id: str,
        rows: Iterable[Mapping[str, Any]],
        header: Mapping[str, Any],
        *,
        after: int = 0,
    ) -> bool:
        """Store one judge's scores beside a run, immutable.

        Args:
            run_id: A published run.
            judge_id: Hash of the judge's configuration and version.
            rows: `{"run": i, "step": j, "start": k, "scores": {type: [values]}}`, see
                `document.join`.
            header: `judge` (its name), the judging ledger, the judge's setup.
            after: Number of score files of this judge that were there when the rows were made;
                the new one comes next.

        Returns:
            False when somebody else wrote that part first; nothing is stored then.
        """
        if "judge" not in header:
            raise StoreError("scores need the judge's name: header has no 'judge'")
        extra = {"kind": "scores", "run_id": run_id, "judge_id": judge_id}
        return self._write_beside(run_id, f"scores.{judge_id}", after, {**header, **extra}, rows)

    def top_up(
        self,
        run_id: str,
        rows: Iterable[Mapping[str, Any]],
        header: Mapping[str, Any],
        *,
        after: int = 0,
    ) -> bool:
        """Store further completions beside a run, immutable.

        Args:
            run_id: A published run.
            rows: `{"run": i, "step": j, "append": {field: [values]}}`, see `document.join`.
            header: The sampling ledger and settings.
            after: Number of top-ups that were there when the rows were made.

        Returns:
            False when somebody else wrote that part first; nothing is stored then.
        """
        extra = {"kind": "completions", "run_id": run_id}
        return self._write_beside(run_id, "completions", after, {**header, **extra}, rows)

    def _write_beside(
        self,
        run_id: str,
        stem: str,
        after: int,
        header: Mapping[str, Any],
        rows: Iterable[Mapping[str, Any]],
    ) -> bool:
        directory = self._existing(run_id).parent
        part = f".{after + 1}" if after else ""
        path = directory / f"{safe_name(stem)}{part}.jsonl"
        data = doc.encode_beside(header, rows)
        with explained("store a later pass", path):
            # the temporary name lives in the shard: the index notices its coming and going
            return write_new(path, data, self.durable, tmp_dir=directory.parent)

    # Cleaning

    def discard_work(self, work: Path) -> None:
        """Remove a work directory in one step, for `Claim.finish`."""
        target = self.root / "trash" / uuid.uuid4().hex
        try:
            os.rename(work, target)
        except OSError:
            return  # somebody else did
        shutil.rmtree(target, ignore_errors=True)

    def gc(self, older_than_s: float = 86400.0, dry_run: bool = False) -> list[Path]:
        """Remove what dead processes left: temporary files, trash, work of published runs.

        Args:
            older_than_s: Only what was last changed so long ago.
            dry_run: Only tell.
        """
        return collect(self, older_than_s, dry_run)
