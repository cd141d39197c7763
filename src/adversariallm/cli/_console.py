"""What every command shows with: hostile text made harmless, progress with an estimate.

Text from models, datasets and errors passes through `clean`; nothing is read as markup.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from adversariallm.runs.campaign import Watcher

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from adversariallm.runs.execute import Event
    from adversariallm.runs.judging import Judged
    from adversariallm.runs.plan import Plan
    from adversariallm.runs.spec import RunTask
    from adversariallm.runs.store import Store
    from adversariallm.runs.worker import Outcome


SILENCE_S = 30.0  # after so long without a line, a step of a run is worth one


def clean(text: str) -> str:
    """The text without anything that moves the cursor, changes colors or reverses direction."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    from adversariallm.reporting.text import visible

    return visible(text)


def say(text: str = "") -> None:
    """Print one text."""
    print(clean(text), flush=True)


def say_json(value: Any) -> None:
    """Print a value as JSON for programs."""
    print(json.dumps(value, indent=2, sort_keys=False, default=str))


def console() -> Console:
    """A console that reads nothing as markup; wide where nobody looks, so that lines stay whole."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    return Console(markup=False, highlight=False, emoji=False, width=width)


def columns(rows: Iterable[Sequence[object]], *, titles: Sequence[str]) -> None:
    """Print rows as aligned columns; the last one takes what is left."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles[:-1]:
        table.add_column(title, no_wrap=True)
    table.add_column(titles[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean("-" if v is None else str(v))) for v in row))
    console().print(table)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class Reporter(Watcher):
    """Shows a command's progress: a bar with an estimate on a terminal, plain lines elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Choose the form; `quiet` keeps only problems."""
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._lock = threading.Lock()
        self._live = not quiet and sys.stdout.isatty()
        self._total = self._done = 0
        self._parts: dict[str, float] = {}  # how far the runs in progress are
        self._start = self._spoke = time.monotonic()

    def __enter__(self) -> Reporter:
        """Start showing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._finish_bar()

    def planned(self, found: Plan, store: Store) -> None:
        """Say what will be done, what will not, and why."""
        for note in found.notes:
            self._line(f"note: {note}")
        if self._quiet:
            return
        say_skipped([(s.label, s.reason) for s in found.skipped])
        say(f"{len(found.todo)} runs to do, results in {store.root}")

    def working(self, count: int) -> None:
        """Start a bar for the runs."""
        self._begin("runs", count)

    def event(self, task: RunTask, event: Event) -> None:
        """Show the newest step; without a bar, now and then."""
        shown = " ".join(f"{k} {_short(v)}" for k, v in event.values.items() if v is not None)
        text = clean(f"{task.spec.attack.name} {event.kind} {event.step} {shown}")
        with self._lock:
            self._parts[task.spec.label] = _share(task, event)
            if self._bar is not None and self._task is not None:
                completed = self._done + sum(self._parts.values())
                self._bar.update(self._task, completed=completed, detail=text[:60])
            elif not self._quiet and time.monotonic() - self._spoke > SILENCE_S:
                self._say(f"[{self._done}/{self._total}] {text}")

    def outcome(self, outcome: Outcome) -> None:
        """Advance; a run that failed is told at once."""
        with self._lock:
            self._parts.pop(outcome.label, None)
        text = f"{outcome.ending}: {outcome.label}"
        if outcome.detail and outcome.detail != "done":
            text += f" ({outcome.detail})"
        self._advance(text, problem=outcome.ending not in ("done", "already done"))

    def note(self, text: str) -> None:
        """Show a remark."""
        self._line(text)

    def judging(self, judge: str, count: int) -> None:
        """Start a bar for the judge."""
        self._begin(f"judging with {judge}", count)

    def judged(self, judge: str, run_id: str, result: Judged | Exception) -> None:
        """Advance; a judge that failed is told at once."""
        if isinstance(result, Exception):
            self._advance(f"{judge} failed on {run_id}: {result}", problem=True)
        else:
            self._advance("", problem=False)

    def _begin(self, what: str, total: int) -> None:
        self._finish_bar()
        self._total, self._done, self._start = total, 0, time.monotonic()
        self._parts = {}
        if not self._live or not total:
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}", markup=False), console=console(), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(what, total=total, detail="")
        self._bar.start()

    def _finish_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def _advance(self, text: str, *, problem: bool) -> None:
        with self._lock:
            self._done += 1
            if self._bar is not None and self._task is not None:
                completed = self._done + sum(self._parts.values())
                self._bar.update(self._task, completed=completed)
                if problem:
                    self._bar.console.print(clean(text))
            elif problem:
                print(clean(text), file=sys.stderr, flush=True)
            elif text and not self._quiet and self._worth_a_line():
                passed = time.monotonic() - self._start
                left = passed / self._done * (self._total - self._done)
                self._say(f"[{self._done}/{self._total}, about {duration(left)} left] {text}")

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        say(text)

    def _worth_a_line(self) -> bool:
        """All lines of small sweeps, every hundredth part of large ones."""
        return self._done % max(1, self._total // 100) == 0 or self._done == self._total

    def _line(self, text: str) -> None:
        if not self._quiet:
            print(clean(text), file=sys.stderr, flush=True)


def say_skipped(rows: Sequence[tuple[str, str]], limit: int = 3) -> None:
    """What is left out, by kind of reason, with a few examples of each."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for label, reason in rows:
        kinds.setdefault(reason.split(" in ")[0].split(" (")[0], []).append((label, reason))
    for found in kinds.values():
        for label, reason in found[:limit]:
            say(f"skipped: {reason} [{label}]")
        if len(found) > limit:
            say(f"skipped: {len(found) - limit} more like this")


def _share(task: RunTask, event: Event) -> float:
    """How much of a run is behind it, as far as its number of steps tells; 1 when it is done."""
    if event.kind == "done":
        return 1.0
    steps = task.spec.attack.options.get("num_steps")
    if not isinstance(steps, int) or event.kind == "completions":
        return 0.9 if event.kind == "completions" else 0.0
    return 0.9 * (event.step + 1) / (steps + 1)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    out: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            out |= flat(inner, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = inner
    return out
