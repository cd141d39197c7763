"""The step log of a run in progress: one append-only file for each generation.

Every line is JSON, a tab and its CRC-32, written by one O_APPEND write; a torn tail is dropped by
the reader and never repaired in place.  The journal does not know what a step is: it keeps
records of named kinds in order.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from adversariallm.core.errors import LostLeaseError
from adversariallm.runs.files import encode, explained, write_all, write_new
from adversariallm.runs.lease import numbered

if TYPE_CHECKING:
    from torch import Tensor

_OPEN = "open"
_SYNC_EVERY_S = 1.0


@dataclass(frozen=True)
class Entry:
    """One record of the journal.

    Attributes:
        kind: `step`, `completion` or another word of the writer's.
        record: What was appended, as JSON values.
        tensor_file: File with the tensors that were appended with it, or None.
    """

    kind: str
    record: dict[str, Any]
    tensor_file: Path | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Load the tensors that were appended with the record; empty when there were none."""
        if self.tensor_file is None:
            return {}
        from safetensors.torch import load_file

        return load_file(self.tensor_file)


@dataclass(frozen=True)
class Resumed:
    """What earlier generations finished: records in the order in which they were appended."""

    entries: tuple[Entry, ...]

    def of_kind(self, kind: str) -> list[Entry]:
        """Return the entries of one kind."""
        return [e for e in self.entries if e.kind == kind]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Records of kind `step`."""
        return [e.record for e in self.of_kind("step")]

    @property
    def completions(self) -> list[dict[str, Any]]:
        """Records of kind `completion`."""
        return [e.record for e in self.of_kind("completion")]

    def last_tensors(self, kind: str = "step") -> dict[str, Tensor]:
        """Load the tensors of the last entry of a kind; empty when there is none."""
        found = self.of_kind(kind)
        return found[-1].tensors() if found else {}


def complete_lines(path: Path) -> list[bytes]:
    """Return the bodies of the lines that were written whole, up to the first that was not."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    bodies: list[bytes] = []
    for line in data.split(b"\n")[:-1]:
        body, _, checksum = line.rpartition(b"\t")
        if not body or checksum != b"%08x" % zlib.crc32(body):
            break
        bodies.append(body)
    return bodies


def read_merged(work: Path, upto: int, schema_version: int) -> list[Entry]:
    """Join the journals of generations 1 to `upto`.

    Each journal's first line says how many earlier entries its writer had accepted; what a zombie
    of an older generation appended after that is ignored.  Entries of another schema version are
    not resumed from.
    """
    entries: list[Entry] = []
    for generation in range(1, upto + 1):
        lines = complete_lines(work / _journal_name(generation))
        if not lines:
            continue
        head = from_json(lines[0])
        if head["schema_version"] != schema_version:
            entries = []
            continue
        entries = entries[: head["accepted"]] + _entries(work, lines[1:])
    return entries


def has_progress(work: Path, generation: int) -> bool:
    """Return whether a generation appended anything."""
    return len(complete_lines(work / _journal_name(generation))) > 1


def _journal_name(generation: int) -> str:
    return f"{numbered('journal', generation)}.jsonl"


def _entries(work: Path, lines: list[bytes]) -> list[Entry]:
    found: list[Entry] = []
    for line in lines:
        value = from_json(line)
        tensors = work / value["tensors"] if value["tensors"] else None
        if tensors is not None and not tensors.exists():
            break  # lost with its node before it reached the disk: what follows needs it
        found.append(Entry(value["kind"], value["record"], tensors))
    return found


class Journal:
    """The append-only log of one generation."""

    def __init__(self, work: Path, generation: int, schema_version: int, durable: bool) -> None:
        """Read what earlier generations finished and open this generation's own file."""
        self._work = work
        self._generation = generation
        self._durable = durable
        self._num_tensor_files = 0
        self.resumed = Resumed(tuple(read_merged(work, generation - 1, schema_version)))
        path = work / _journal_name(generation)
        with explained("open the journal", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._fd = os.open(path, flags, 0o644)
        self._size = 0
        self._path = path
        self._synced_at = time.monotonic()
        accepted = len(self.resumed.entries)
        head = {"kind": _OPEN, "generation": generation, "accepted": accepted}
        self._put(encode({**head, "schema_version": schema_version}))
        self.sync()

    def append(
        self, kind: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor] | None
    ) -> None:
        """Add a record; when this returns, a killed process cannot lose it.

        Args:
            kind: Word the reader selects by.
            record: JSON values.
            tensors: Named tensors, written whole before the line that names them.

        Raises:
            StoreError: The disk is full or read-only; the journal is as it was before the call.
        """
        name = self._write_tensors(tensors) if tensors else None
        self._put(encode({"kind": kind, "record": record, "tensors": name}))
        if self._durable and time.monotonic() - self._synced_at >= _SYNC_EVERY_S:
            self.sync()

    def _write_tensors(self, tensors: Mapping[str, Tensor]) -> str:
        from safetensors.torch import save

        self._num_tensor_files += 1
        name = f"{numbered('tensors', self._generation)}.{self._num_tensor_files:06d}.safetensors"
        contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        with explained("store tensors", self._work / name):
            if not write_new(self._work / name, save(contiguous), self._durable):
                raise LostLeaseError(f"{self._work / name} was written by somebody else")
        return name

    def _put(self, body: bytes) -> None:
        line = b"%b\t%08x\n" % (body, zlib.crc32(body))
        with explained("append a step", self._path):
            try:
                write_all(self._fd, line)
            except OSError:
                os.ftruncate(self._fd, self._size)  # our own file: drop the torn line at once
                raise
        self._size += len(line)

    def sync(self) -> None:
        """Make all that was appended survive the loss of the node."""
        if self._durable:
            os.fsync(self._fd)
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
