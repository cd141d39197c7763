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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adversariallm.core.errors import ConfigError, StoreError
from adversariallm.runs.execute import Event
from adversariallm.runs.judging import Judged, judge_run
from adversariallm.runs.lookups import installed, open_store
from adversariallm.runs.plan import Plan, plan
from adversariallm.runs.settings import Request, Settings, read
from adversariallm.runs.spec import RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.topup import lacking
from adversariallm.runs.worker import Outcome, Workshop, work

COMMON = ("out", "retry", "launcher", "store", "judges")
COMMANDS = "commands.jsonl"


class Watcher:
    """Told what happens; this one ignores it. Events and outcomes may come from other threads."""

    def planned(self, found: Plan, store: Store) -> None:
        """Called once, before anything is loaded."""

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
    *arguments: str, watcher: Watcher | None = None, workshop: Workshop | None = None
) -> Finished:
    """Carry out what `adversariallm run` with these arguments does.

    Args:
        arguments: overrides as typed on the command line, e.g. `attack=direct`.
        watcher: told about the progress.
        workshop: models that are loaded already.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
    """
    watcher = watcher or Watcher()
    request, settings = prepare(arguments)
    launcher = settings.launcher.resolved()
    store = open_store(settings)
    _check_writable(store.root)
    found = plan(request, installed(store), retry=settings.retry)
    watcher.planned(found, store)
    if not found.todo and not found.done:
        return Finished(found, (), store)
    _require_judges(found, settings)
    _remember(store.root, arguments)
    short = [r for r in found.done if lacking(store, r.task)]
    if launcher.kind != "inline":
        if short:
            watcher.note(
                f"{len(short)} stored runs lack completions: only launcher.kind=inline adds them"
            )
        from adversariallm.runs.launch.dispatch import dispatch

        sent = dispatch(arguments, found, store, settings, launcher, watcher.outcome, watcher.note)
        return Finished(found, sent.outcomes, store, sent.problems)
    workshop = workshop or Workshop(judges=settings.judges)
    if short:
        watcher.note(f"{len(short)} stored runs get the completions they lack")
    outcomes = work(
        store,
        [r.task for r in (*found.todo, *short)],
        workshop,
        retry=settings.retry,
        on_event=watcher.event,
        on_outcome=watcher.outcome,
    )
    finished = Finished(found, tuple(outcomes), store)
    finished.problems.update(_judge(finished, workshop, watcher))
    return finished


def _require_judges(found: Plan, settings: Settings) -> None:
    """Refuse a command whose judges lack a text or an option, before anything is loaded."""
    from adversariallm.runs.lookups import require_judge

    names = {j for r in (*found.todo, *found.done) for j in r.task.spec.amounts.judges}
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
            known = run_.run_id in before and _settled(finished.store, run_.run_id, ids[judge])
            if run_.run_id in stored and not known:
                pairs.append((run_.run_id, judge))
    pairs.sort(key=lambda pair: pair[1])
    return judge_runs(finished.store, pairs, workshop, watcher)


def _settled(store: Store, run_id: str, judge_id: str) -> bool:
    """Whether nothing of a run can be unscored: spares reading thousands of finished runs."""
    return store.has_scores(run_id, judge_id) and not store.top_ups(run_id)


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


def _remember(root: Path, arguments: Sequence[str]) -> None:
    """Keep the command for `adversariallm resume`."""
    root.mkdir(parents=True, exist_ok=True)
    if (root / COMMANDS).is_file() and remembered(root)[-1:] == [list(arguments)]:
        return
    line = json.dumps({"time": int(time.time()), "arguments": list(arguments)})
    with (root / COMMANDS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def remembered(root: Path | str) -> list[list[str]]:
    """The commands that wrote to a store, oldest first, each once.

    Raises:
        StoreError: there is no such store, or no command is known.
    """
    path = Path(root) / COMMANDS
    if not path.is_file():
        raise StoreError(f"{root} holds no {COMMANDS}: no `adversariallm run` wrote there")
    found: dict[tuple[str, ...], None] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            arguments = tuple(map(str, json.loads(line)["arguments"]))
        except (ValueError, KeyError, TypeError):
            continue  # a line cut off by a full disk
        found.pop(arguments, None)
        found[arguments] = None
    return [list(arguments) for arguments in found]
