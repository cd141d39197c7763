"""A batch: the runs of one command, written to the store so that any process can work on them.

It says what belongs together and how judges are set up; how far the runs are stands in the store
itself.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from adversariallm.core.config import stable_hash
from adversariallm.core.errors import StoreError
from adversariallm.runs.files import decode, encode, explained
from adversariallm.runs.judging import View
from adversariallm.runs.spec import RunTask
from adversariallm.runs.store import Store


@dataclass(frozen=True)
class Batch:
    """The runs of one command.

    Attributes:
        name: Equal for repetitions of the command.
        root: Directory of the store.
        tasks: The runs, those that need the same things loaded next to each other.
        judges: Options of judges by name.
        ttl_s: Time to live of leases.
        compression: Of published runs.
        pairs: Run id and judge of further judgings, for runs that are stored already.
        view: What judges read as the request.
        tracking: Trackers that pilots tell what happens.
    """

    name: str
    root: Path
    tasks: tuple[RunTask, ...]
    judges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ttl_s: float = 120.0
    compression: Literal["none", "zstd"] = "none"
    pairs: tuple[tuple[str, str], ...] = ()
    view: View = "clean"
    tracking: tuple[str, ...] = ()

    @staticmethod
    def name_of(arguments: Sequence[str], root: Path) -> str:
        """Return the name that a command on a store and its repetitions share."""
        free = ("out=", "retry=", "launcher.", "hydra", "tracking=")
        kept = [a for a in arguments if not a.startswith(free)]
        return stable_hash([str(root.absolute()), kept], length=12)

    @property
    def folder(self) -> Path:
        """Where logs and job files of the batch lie."""
        return self.root / "plans" / self.name

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Run ids, in the order of `tasks`."""
        return tuple(task.spec.run_id for task in self.tasks)

    def store(self, stop: Callable[[], bool] = lambda: False) -> Store:
        """Open the store for a worker."""
        return Store(self.root, ttl_s=self.ttl_s, compression=self.compression, stop=stop)

    def save(self) -> Path:
        """Write the batch to the store, replacing an earlier form of it, and return the file."""
        head = {
            "name": self.name,
            "judges": self.judges,
            "ttl_s": self.ttl_s,
            "compression": self.compression,
            "ids": self.ids,
            "pairs": self.pairs,
            "view": self.view,
            "tracking": self.tracking,
        }
        path = self.folder / "tasks.jsonl"
        scratch = path.with_name(f".tmp.{uuid.uuid4().hex}")
        with explained("write the plan", path):
            self.folder.mkdir(parents=True, exist_ok=True)
            lines = [encode(head), *(encode(t.model_dump(mode="json")) for t in self.tasks)]
            scratch.write_bytes(b"\n".join(lines) + b"\n")
            os.replace(scratch, path)
        return path

    @classmethod
    def load(cls, path: Path) -> Batch:
        """Read a batch that `save` wrote.

        Raises:
            StoreError: There is none, or another release wrote it.
        """
        try:
            first, *lines = path.read_bytes().splitlines()
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} holds no plan ({error}); repeat the command") from None
        head = decode(first, path)
        known = {field.name for field in fields(cls)} | {"ids"}
        if set(head) - known:
            raise StoreError(
                f"{path} was written by another release (it has {sorted(set(head) - known)[0]!r}); "
                "repeat the command with this one"
            )
        tasks = tuple(RunTask.model_validate_json(line) for line in lines)
        head.pop("ids")
        head["pairs"] = tuple(tuple(pair) for pair in head.get("pairs", ()))
        head["tracking"] = tuple(head.get("tracking", ()))
        return cls(root=path.absolute().parents[2], tasks=tasks, **head)
