"""What every command shows with: hostile text made harmless, progress with an estimate.

Text from models, datasets and errors passes through `clean`; nothing is read as markup.
"""

from __future__ import annotations

import json
import math
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
SETTING_UP = "loading models, preparing the first step"
LENGTHS: tuple[tuple[str, ...], ...] = (
    ("num_steps",), ("num_suffixes",), ("num_tokens",), ("num_streams", "num_iterations"),
    ("depth", "width"), ("num_trials", "max_turns"), ("num_actors", "num_questions"),
)  # fmt: skip
"""Options whose product is how many steps a run has at most; the first that an attack has."""


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
        self._given: dict[str, float] = {}  # how far they were when they were taken up
        self._earlier = 0.0  # what runs that ended had been given
        self._lengths: dict[str, int] = {}  # steps of ended runs, where the options do not tell
        self._start = self._spoke = time.monotonic()
        self._latest = ""
        self._over: threading.Event | None = None

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
            share = self._share(task, event)
            self._parts[task.spec.label] = share
            if event.kind == "resumed":
                self._given[task.spec.label] = share
            self._latest = text
            if self._bar is not None and self._task is not None:
                completed = self._done + sum(self._parts.values())
                self._bar.update(self._task, completed=completed, detail=text[:60])
            elif not self._quiet and time.monotonic() - self._spoke > SILENCE_S:
                self._say(f"[{self._where()}] {text}")

    def outcome(self, outcome: Outcome) -> None:
        """Advance; a run that failed is told at once."""
        with self._lock:
            self._parts.pop(outcome.label, None)
            self._earlier += self._given.pop(outcome.label, 0.0)
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
        self._parts, self._given, self._earlier = {}, {}, 0.0
        self._latest = SETTING_UP if what == "runs" else what
        if not self._live or not total:
            if total and not self._quiet:
                self._spoke = time.monotonic()
                self._over = threading.Event()
                threading.Thread(target=self._beat, args=(self._over,), daemon=True).start()
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
        self._task = self._bar.add_task(what, total=total, detail=self._latest)
        self._bar.start()

    def _beat(self, over: threading.Event) -> None:
        """Say that something is going on where no step ends for long."""
        while not over.wait(max(0.05, SILENCE_S / 3)):
            with self._lock:
                silent = time.monotonic() - self._spoke
                if not over.is_set() and silent > 2 * SILENCE_S:
                    self._say(f"[{self._where()}] {self._latest} (no news for {duration(silent)})")

    def _where(self) -> str:
        """How many runs are done, and the time left as far as the work until now tells."""
        done = self._done + sum(self._parts.values())
        worked = done - sum(self._given.values()) - self._earlier
        if worked <= 0:
            return f"{self._done}/{self._total}"
        left = (time.monotonic() - self._start) / worked * (self._total - done)
        return f"{self._done}/{self._total}, about {duration(left)} left"

    def _share(self, task: RunTask, event: Event) -> float:
        """How much of a run is behind it, as far as its length is known; 1 when it is done."""
        attack = task.spec.attack
        known = f"{attack.name} {sorted(attack.options.items())}"
        if event.kind == "done":
            self._lengths[known] = event.step
            return 1.0
        if event.kind == "completions":
            return 0.9
        length = _length(attack.options) or self._lengths.get(known)
        return 0.0 if length is None else 0.9 * min(1.0, (event.step + 1) / (length + 1))

    def _finish_bar(self) -> None:
        if self._over is not None:
            self._over.set()
            self._over = None
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
                self._say(f"[{self._where()}] {text}")

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


def _length(options: Mapping[str, Any]) -> int | None:
    """How many steps an attack takes at most; None where its options do not tell."""
    for names in LENGTHS:
        counts = [count for name in names if isinstance(count := options.get(name), int)]
        if len(counts) == len(names):
            return math.prod(counts)
    inner = [found for v in options.values() if isinstance(v, Mapping) and (found := _length(v))]
    return inner[0] if len(inner) == 1 else None


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
