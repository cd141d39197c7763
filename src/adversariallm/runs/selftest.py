"""Does a file system keep the promises that the store rests on?

For `adversariallm selftest --store DIR`: each promise is tried by itself, then the store is used
by processes that get killed.  Passing is evidence, not proof: what several hosts see is only
tested from several hosts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from adversariallm.core.errors import StoreError
from adversariallm.runs.files import explained, server_now_ns, touch, write_new
from adversariallm.runs.stress import Settings, stress

_RACERS = 8
_ROUNDS = 20


@dataclass(frozen=True)
class Check:
    """One promise: its name, whether it held and what was seen."""

    name: str
    passed: bool
    detail: str


def selftest(path: Path | str, kills: int = 20) -> list[Check]:
    """Try a directory's file system; everything written is removed again.

    Args:
        path: Directory, created when missing.
        kills: How many processes to kill in the last check; 0 leaves that check out.

    Raises:
        StoreError: The directory cannot be written at all.
    """
    root = Path(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="selftest.", dir=root))
    except OSError as error:
        raise StoreError(
            f"cannot write in {root}: {error.strerror}; choose another place"
        ) from error
    try:
        tries: list[tuple[str, Callable[[Path], str]]] = [
            ("one of many wins a link", _links),
            ("a directory replaces no full one", _renames),
            ("appended lines stay whole", _appends),
            ("one clock, in order", _clock),
        ]
        checks = [_try(name, check, scratch) for name, check in tries]
        if kills and all(check.passed for check in checks):
            checks.append(_kills(scratch / "store", kills))
        return checks
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _try(name: str, check: Callable[[Path], str], scratch: Path) -> Check:
    place = scratch / name.replace(" ", "-")
    place.mkdir()
    try:
        with explained(f"check that {name}", place):
            return Check(name, True, check(place))
    except (StoreError, OSError, _BrokenPromise) as error:
        return Check(name, False, str(error))


class _BrokenPromise(Exception):
    pass


def _links(place: Path) -> str:
    for round_number in range(_ROUNDS):
        with ThreadPoolExecutor(_RACERS) as pool:
            target = place / f"lease.{round_number}"
            racers = [pool.submit(write_new, target, b"%d" % i) for i in range(_RACERS)]
            wins = [racer.result() for racer in racers]
        if sum(wins) != 1 or target.read_bytes() != b"%d" % wins.index(True):
            raise _BrokenPromise(
                f"{sum(wins)} of {_RACERS} creators of one file were told they won"
            )
    return f"{_ROUNDS} races of {_RACERS}"


def _renames(place: Path) -> str:
    for name in ("first", "second"):
        (place / name).mkdir()
        (place / name / "file").write_text(name, encoding="ascii")
    os.rename(place / "first", place / "final")
    try:
        os.rename(place / "second", place / "final")
    except OSError:
        if (place / "final" / "file").read_text(encoding="ascii") == "first":
            return "refused"
    raise _BrokenPromise("a directory was renamed over another that was not empty")


def _appends(place: Path) -> str:
    path, lines = place / "log", [b"%d" % i * 5000 + b"\n" for i in range(50)]
    for line in lines:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, line)
        os.fsync(fd)
        os.close(fd)
    if path.read_bytes() != b"".join(lines):
        raise _BrokenPromise("lines that were appended and fsynced read back differently")
    return f"{len(lines)} lines"


def _clock(place: Path) -> str:
    file = place / "lease"
    file.touch()
    before = file.stat().st_mtime_ns
    time.sleep(1.1)
    touch(file)
    after, now = file.stat().st_mtime_ns, server_now_ns(place)
    if not before < after or abs(now - after) > 2e9:
        raise _BrokenPromise(
            f"modification times do not follow one clock: {before}, {after}, now {now} (ns); "
            "mount the file system with attribute caching below a quarter of the lease time"
        )
    return f"differs from this host's clock by {abs(now / 1e9 - time.time()):.1f} s"


def _kills(root: Path, kills: int) -> Check:
    report = stress(Settings(roots=(str(root),), kills=kills, stops=kills // 5, num_runs=kills))
    hits = ", ".join(f"{n} in {phase}" for phase, n in report.kills.items())
    detail = f"{hits}; {report.acknowledged_steps} steps, generation {report.highest_generation}"
    return Check(
        "killed processes lose nothing",
        not report.problems,
        "; ".join(report.problems) or detail,
    )
