"""One command from its arguments to judged results: plan, work, judge.

Both the command line and `adversariallm.run` call `run`; what is shown meanwhile is up to a
`Watcher`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import ConfigError, StoreError
from adversariallm.runs.execute import Event
from adversariallm.runs.files import explained
from adversariallm.runs.judging import Judged, View, judge_run, settled
from adversariallm.runs.lookups import installed, open_store
from adversariallm.runs.nearest import left_unfinished
from adversariallm.runs.plan import Plan, Planned, plan
from adversariallm.runs.settings import Request, Settings, read
from adversariallm.runs.spec import RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.topup import PASS, lacking
from adversariallm.runs.tracking import Hook, Tracking, make_hooks
from adversariallm.runs.worker import Outcome, Workshop, work

if TYPE_CHECKING:
    from adversariallm.runs.launch.batch import Batch

COMMON = ("out", "retry", "launcher", "store", "judges", "tracking")
COMMANDS = "commands.jsonl"


class Watcher:
    """Told what happens; this one ignores it. Events and outcomes may come from other threads."""

    def planned(self, found: Plan, store: Store) -> None:
        """Called once, before anything is loaded."""

    def working(self, count: int) -> None:
        """Called before runs are worked on, with how many there are."""

    def event(self, task: RunTask, event: Event) -> None:
        """Called for the progress inside a run."""

    def outcome(self, outcome: Outcome) -> None:
        """Called when a run ended."""

    def note(self, text: str) -> None:
        """Called with a remark for the user."""

    def judging(self, judge: str, count: int) -> None:
        """Called before a judge starts on `count` runs."""

    def judged(self, judge: str, run_id: str, result: Judged | Exception) -> None:
        """Called when a judge has finished with a run."""


@dataclass(frozen=True)
class Command:
    """What was typed, so that it can be repeated and its repetitions recognized.

    Attributes:
        verb: `run`, or a later pass.
        arguments: overrides.
        runs: ids of the stored runs that a pass is for.
        where: filter terms that choose them.
        view: what judges read.
    """

    verb: str
    arguments: tuple[str, ...]
    runs: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    view: View = "clean"

    @property
    def words(self) -> tuple[str, ...]:
        """As typed on a command line."""
        options = [word for term in self.where for word in ("--where", term)]
        attacked = ["--attacked"] if self.view == "attacked" else []
        runs = [word for run_id in self.runs for word in ("--id", run_id)]
        verb = [] if self.verb == "run" else [self.verb]
        return (*verb, *self.arguments, *runs, *options, *attacked)


@dataclass(frozen=True)
class Finished:
    """What a command did.

    Attributes:
        plan: what was to be done.
        outcomes: how each run ended.
        problems: judges that failed, by judge and run.
        store: where the results are.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...]
    store: Store
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Runs that did not end well."""
        return tuple(o for o in self.outcomes if o.ending in ("failed", "failed before", "lost"))

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Runs of this command that are stored, done before or now."""
        before = [r.run_id for r in self.plan.done]
        now = [o.run_id for o in self.outcomes if o.ending in ("done", "already done")]
        return tuple(dict.fromkeys([*before, *now]))

    @property
    def exit_code(self) -> int:
        """0 where all is done, 1 where some runs or judges failed."""
        skipped_failures = any("failed before" in s.reason for s in self.plan.skipped)
        return int(bool(self.failed or self.problems or skipped_failures))


def prepare(arguments: Sequence[str]) -> tuple[Request, Settings]:
    """Parse a command, and the settings that hold for all of it.

    Raises:
        ConfigError: a key or value is wrong, or one of `COMMON` is swept.
    """
    request = read(arguments)
    for key in request.axes:
        if key.split(".")[0] in COMMON:
            raise ConfigError(f"{key} holds for the whole command, it cannot be swept")
    return request, next(request.points())


def preview(*arguments: str) -> Plan:
    """What `run` with these arguments would do; nothing is loaded or written."""
    request, settings = prepare(arguments)
    return plan(request, installed(open_store(settings)), retry=settings.retry)


def run(
    *arguments: str,
    watcher: Watcher | None = None,
    workshop: Workshop | None = None,
    hooks: Sequence[Hook] = (),
) -> Finished:
    """Carry out what `adversariallm run` with these arguments does.

    Args:
        arguments: overrides as typed on the command line, e.g. `attack=direct`.
        watcher: told about the progress.
        workshop: models that are loaded already.
        hooks: told about the runs, see `runs.tracking`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
    """
    request, settings = prepare(arguments)
    settings.launcher.resolved()  # a wrong profile ends the command here
    store = open_store(settings)
    _check_writable(store.root)
    found = plan(request, installed(store), retry=settings.retry)
    return carry_out(Command("run", arguments), found, settings, store, watcher, workshop, hooks)


def carry_out(
    command: Command,
    found: Plan,
    settings: Settings,
    store: Store,
    watcher: Watcher | None = None,
    workshop: Workshop | None = None,
    hooks: Sequence[Hook] = (),
) -> Finished:
    """Do what a plan says, with the launcher of the settings: work, top up, judge.

    Args:
        command: where the plan is from; kept for `adversariallm resume`.
        found: the plan.
        settings: what holds for the whole command.
        store: where results go.
        watcher: told about the progress.
        workshop: models that are loaded already.
        hooks: told about the runs, beside those that `tracking` names; with another launcher than
            `inline` only those.

    Raises:
        ConfigError: the package of a tracker is not installed.
    """
    watcher = watcher or Watcher()
    _check_writable(store.root)
    hooks = [*hooks, *make_hooks(settings.tracking)]
    watcher.planned(found, store)
    stopped = left_unfinished(store, [r.task.spec for r in (*found.todo, *found.done)])
    if stopped:
        watcher.note(f"note: {stopped}")
    if not found.todo and not found.done:
        return Finished(found, (), store)
    _require_judges(found, settings)
    _remember(store.root, command)
    short = [r for r in found.done if lacking(store, r.task)]
    if short:
        watcher.note(f"{len(short)} stored runs get the completions they lack")
    watcher.working(len(found.todo) + len(short))
    if settings.launcher.resolved().kind != "inline":
        return _send(command, found, settings, store, watcher, short)
    workshop = workshop or Workshop(judges=settings.judges)
    told = Tracking(store, hooks)

    def on_event(task: RunTask, event: Event) -> None:
        watcher.event(task, event)
        told.event(task, event)

    def on_outcome(outcome: Outcome) -> None:
        watcher.outcome(outcome)
        told.outcome(outcome)

    outcomes = work(
        store,
        [r.task for r in (*found.todo, *short)],
        workshop,
        retry=settings.retry,
        on_event=on_event,
        on_outcome=on_outcome,
    )
    finished = Finished(found, tuple(outcomes), store)
    finished.problems.update(_judge(finished, workshop, watcher))
    return finished


def _send(
    command: Command,
    found: Plan,
    settings: Settings,
    store: Store,
    watcher: Watcher,
    short: Sequence[Planned],
) -> Finished:
    """Have other processes do what a plan says."""
    from adversariallm.runs.launch.dispatch import dispatch

    batch = _batch(command, settings, store, [r.task for r in (*found.todo, *found.done)])
    if settings.retry:
        for run_ in found.todo:
            store.reopen(run_.run_id)
        for run_ in short:
            store.reopen(run_.run_id, PASS)
    num_open = len(found.todo) + len(short)
    sent = dispatch(batch, num_open, settings.launcher.resolved(), watcher.outcome, watcher.note)
    return Finished(found, sent.outcomes, store, sent.problems)


def _batch(
    command: Command,
    settings: Settings,
    store: Store,
    tasks: Sequence[RunTask],
    pairs: Sequence[tuple[str, str]] = (),
) -> Batch:
    from adversariallm.runs.launch.batch import Batch

    return Batch(
        name=Batch.name_of(command.words, store.root),
        root=store.root.absolute(),
        tasks=tuple(tasks),
        judges=settings.judges,
        ttl_s=store.ttl_s,
        compression=store.compression,
        pairs=tuple(pairs),
        view=command.view,
        tracking=settings.tracking,
    )


def carry_out_judging(
    command: Command,
    pairs: Sequence[tuple[str, str]],
    store: Store,
    settings: Settings,
    watcher: Watcher | None = None,
    workshop: Workshop | None = None,
) -> Finished:
    """Have stored runs scored, given as run id and judge, with the launcher of the settings.

    Args:
        command: where the pairs are from; kept for `adversariallm resume`.
        pairs: those of one judge next to each other.
        store: where they are.
        settings: what holds for the whole command.
        watcher: told about the progress.
        workshop: models that are loaded already.
    """
    from adversariallm.runs.lookups import require_judge

    watcher = watcher or Watcher()
    _check_writable(store.root)
    for name in settings.judge:
        require_judge(name, settings.judges.get(name, {}))
    _remember(store.root, command)
    launcher = settings.launcher.resolved()
    if launcher.kind != "inline":
        from adversariallm.runs.launch.dispatch import dispatch

        batch = _batch(command, settings, store, (), pairs)
        sent = dispatch(batch, 0, launcher, watcher.outcome, watcher.note)
        return Finished(Plan(()), sent.outcomes, store, sent.problems)
    workshop = workshop or Workshop(judges=settings.judges)
    problems = judge_runs(store, pairs, workshop, watcher, view=command.view)
    return Finished(Plan(()), (), store, problems)


def _require_judges(found: Plan, settings: Settings) -> None:
    """Refuse a command whose judges lack a text or an option, before anything is loaded."""
    from adversariallm.runs.lookups import require_judge

    specs = [r.task.spec for r in (*found.todo, *found.done)]
    names = {j for spec in specs for j in spec.amounts.judges}
    names |= {j for spec in specs for d in spec.defense for j in d.supplies.get("judges", {})}
    for name in sorted(names):
        require_judge(name, settings.judges.get(name, {}))


def _judge(finished: Finished, workshop: Workshop, watcher: Watcher) -> dict[str, str]:
    """Let every judge score the stored runs; one that fails does not stop the others."""
    stored = set(finished.run_ids)
    before = {r.run_id for r in finished.plan.done}
    ids: dict[str, str] = {}
    pairs = []
    for run_ in (*finished.plan.todo, *finished.plan.done):
        for judge in run_.task.spec.amounts.judges:
            if judge not in ids:
                ids[judge] = workshop.judge_id(judge)
            known = run_.run_id in before and settled(finished.store, run_.run_id, ids[judge])
            if run_.run_id in stored and not known:
                pairs.append((run_.run_id, judge))
    pairs.sort(key=lambda pair: pair[1])
    return judge_runs(finished.store, pairs, workshop, watcher)


def judge_runs(
    store: Store,
    pairs: Sequence[tuple[str, str]],
    workshop: Workshop,
    watcher: Watcher,
    *,
    view: Any = "clean",
) -> dict[str, str]:
    """Score stored runs.

    Args:
        store: where they are.
        pairs: run id and judge, those of one judge next to each other.
        workshop: makes judges.
        watcher: told about the progress.
        view: whether judges read the original prompt or the one that was sent.

    Returns:
        What went wrong, by judge and run.
    """
    problems: dict[str, str] = {}
    counts = Counter(judge for _, judge in pairs)
    started: set[str] = set()
    for run_id, judge in pairs:
        if judge not in started:
            started.add(judge)
            watcher.judging(judge, counts[judge])
        result: Judged | Exception
        try:
            result = judge_run(store, run_id, workshop.judge_factory(judge), view=view)
        except Exception as error:  # noqa: BLE001  -- one bad judge must not cost the others
            result = error
            problems[f"{judge} on {run_id}"] = str(error) or repr(error)
        watcher.judged(judge, run_id, result)
    return problems


def _check_writable(root: Path) -> None:
    """Refuse a store that cannot be written before anything is loaded."""
    place = root.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(
            f"out={root}: {place} is not a folder that can be written; choose another"
        )


def _remember(root: Path, command: Command) -> None:
    """Keep the command for `adversariallm resume`; the first write to the store.

    Raises:
        ConfigError: the folder cannot be made.
        StoreError: it is full, or cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"out={root}: no such folder can be made ({error.strerror}); choose another"
        ) from error
    if (root / COMMANDS).is_file() and remembered(root)[-1:] == [command]:
        return
    line = json.dumps({"time": int(time.time()), **asdict(command)})
    with explained("note the command", root / COMMANDS):
        with (root / COMMANDS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def remembered(root: Path | str) -> list[Command]:
    """The commands that wrote to a store, oldest first, each once.

    Raises:
        StoreError: there is no such store, or no command is known.
    """
    path = Path(root) / COMMANDS
    if not path.is_file():
        raise StoreError(f"{root} holds no {COMMANDS}: no `adversariallm run` wrote there")
    found: dict[Command, None] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            command = _command(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue  # a line cut off by a full disk
        found.pop(command, None)
        found[command] = None
    return list(found)


def _command(row: dict[str, Any]) -> Command:
    lists = {k: tuple(map(str, row.get(k, ()))) for k in ("runs", "where")}
    view: View = "attacked" if row.get("view") == "attacked" else "clean"
    arguments = tuple(map(str, row["arguments"]))
    return Command(str(row.get("verb", "run")), arguments, **lists, view=view)
