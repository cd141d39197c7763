"""File-system primitives of the run store: whole-or-nothing files, durable directories, one clock.

Only four promises are used: link(2) succeeds for one caller, rename(2) is atomic in one file
system, a file that was fsynced before it got its name is whole after it, and the modification
times of one directory come from one clock.  It deliberately uses no flock, no daemon and no local
clock, and knows nothing of runs.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from adversariallm.core.errors import StoreError

TMP_PREFIX = ".tmp."
_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space and run the same command again",
    errno.EROFS: "the file system is read-only: choose a writable place with out=DIR",
    errno.EACCES: "permission denied: choose a writable place with out=DIR",
    errno.EPERM: "not permitted (perhaps the file system has no hard links): choose another with "
    "out=DIR; `adversariallm selftest --store DIR` tells whether it is fit",
    errno.EOPNOTSUPP: "the file system has no hard links: choose another with out=DIR; "
    "`adversariallm selftest --store DIR` tells whether it is fit",
}
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


class CorruptRunError(StoreError):
    """A stored file is not what was published: cut off, edited by hand or no JSON."""


@contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Turn full, read-only and forbidden file systems into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        raise StoreError(
            f"could not {what} at {path}: {_ADVICE[error.errno]}. "
            "Finished steps and published runs are kept."
        ) from error


def safe_name(name: str) -> str:
    """Return the name when it can be part of a file name; names never come from model output."""
    if not _SAFE_NAME.fullmatch(name) or ".." in name:
        raise StoreError(
            f"{name!r} cannot name a file of the store: "
            "expected at most 121 letters, digits, '.', '_' and '-'"
        )
    return name


def encode(value: Any) -> bytes:
    """Return compact one-line UTF-8 JSON; NaN and infinities become null to keep it valid."""
    return to_json(value, inf_nan_mode="null")


def decode(data: bytes, where: Path) -> Any:
    """Parse JSON that must be whole.

    Raises:
        CorruptRunError: The bytes are no JSON.
    """
    try:
        return from_json(data)
    except ValueError as error:
        raise CorruptRunError(f"{where} is damaged ({error})") from error


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, in one call where the kernel allows."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Create a file that nobody else can see yet (its directory is private)."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        write_all(fd, data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_new(final: Path, data: bytes, durable: bool = True, tmp_dir: Path | None = None) -> bool:
    """Create a file whole or not at all; False when it exists already (somebody was first)."""
    tmp = (tmp_dir or final.parent) / f"{TMP_PREFIX}{uuid.uuid4().hex}"
    try:
        write_file(tmp, data, durable)
        try:
            os.link(tmp, final)
            won = True
        except FileExistsError:
            won = os.stat(tmp).st_nlink == 2  # a repeated request of a network file system
        except OSError:
            if os.stat(tmp).st_nlink != 2:  # 2: only the reply was lost, the link was made
                raise
            won = True
    finally:
        tmp.unlink(missing_ok=True)
    if won and durable:
        fsync_dir(final.parent)
    return won


def rename_directory(staged: Path, final: Path, durable: bool) -> bool:
    """Rename into place unless a directory that is not empty is there."""
    try:
        os.rename(staged, final)
    except OSError:
        if not staged.exists() and final.exists():
            pass  # a repeated request of a network file system: ours arrived
        elif final.exists() and any(final.iterdir()):
            return False
        else:
            raise
    if durable:
        fsync_dir(final.parent)
    return True


def server_now_ns(directory: Path) -> int:
    """Return the time of the file server's clock, so that hosts with wrong clocks agree."""
    probe = directory / f"{TMP_PREFIX}{uuid.uuid4().hex}"
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
        os.unlink(probe)


def touch(path: Path) -> None:
    """Set the modification time by the server's clock."""
    os.utime(path)


def shards(root: Path) -> list[Path]:
    """Return the two-character subdirectories of a part of the store, sorted."""
    try:
        return sorted(p for p in root.iterdir() if len(p.name) == 2 and p.is_dir())
    except FileNotFoundError:
        return []
