"""Later passes over stored runs: more samples, other models, more steps, more judges.

Each is planned here into runs of the usual kind, so that claims, launchers, resume and judging are
those of the first pass (`runs.campaign`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import ConfigError, NeedsError, StoreError
from adversariallm.runs.campaign import (
    Command,
    Finished,
    Watcher,
    carry_out,
    carry_out_judging,
    run,
)
from adversariallm.runs.derive import Derive, Pass, extended, sampled, transferred
from adversariallm.runs.files import CorruptRunError
from adversariallm.runs.lookups import installed, open_store
from adversariallm.runs.plan import Plan, Planned, Planner, Skipped, resources_key, skip_reason
from adversariallm.runs.settings import Request, Settings, read
from adversariallm.runs.spec import RunSpec
from adversariallm.runs.stored import spec_of, task_of

if TYPE_CHECKING:
    from adversariallm.runs.judging import View
    from adversariallm.runs.store import Store
    from adversariallm.runs.worker import Workshop

COMMON = ("out", "retry", "launcher", "store", "judge", "judges", "tracking")
KEYS = {
    "sample": (*COMMON, "generation_config", "completions", "timing"),
    "transfer": (
        *COMMON, "generation_config", "completions", "timing", "model", "models", "defense",
        "defenses", "helpers", "budget",
    ),
    "extend": (*COMMON, "attacks", "budget", "completions", "timing"),
    "judge": ("out", "judge", "judges", "launcher", "store"),
}  # fmt: skip
"""What each pass takes, by the first part of the key."""
_STAND_INS = {"model": "(stored)", "dataset": "(stored)", "attack": "(stored)"}


def sample(*arguments: str, **options: Any) -> Finished:
    """Make more completions of stored inputs.

    With the decoding of the stored run they are put beside it. Other decoding gives a run of its
    own that names the stored one, so that nothing mixes.

    Args:
        arguments: `out=`, `generation_config.*`, `completions=` (which steps), `judge=`, ...
        options: `runs` (ids), `where` (filter terms), `watcher`, `workshop`; as for `judge`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
    """
    return _carry_out("sample", sampled, arguments, **options)


def transfer(*arguments: str, **options: Any) -> Finished:
    """Send stored inputs to other models, or to the same behind a defense or system prompt.

    Args:
        arguments: `out=`, `model=`, `models.*`, `defense=`, `generation_config.*`, ...
        options: `runs` (ids), `where` (filter terms), `watcher`, `workshop`; as for `judge`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
        NeedsError: none of the chosen runs can be sent, e.g. because its inputs are embeddings.
    """
    return _carry_out("transfer", transferred, arguments, **options)


def extend(*arguments: str, **options: Any) -> Finished:
    """Go on with finished searches.

    Args:
        arguments: `out=`, `attacks.NAME.num_steps=` or `budget.*`, ...
        options: `runs` (ids), `where` (filter terms), `watcher`, `workshop`; as for `judge`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
        NeedsError: none of the chosen runs can be extended, with the reason of the first.
    """
    return _carry_out("extend", extended, arguments, **options)


def judge(
    *arguments: str,
    runs: Sequence[str] | None = None,
    where: Sequence[str] | None = None,
    view: View = "clean",
    watcher: Watcher | None = None,
    workshop: Workshop | None = None,
) -> Finished:
    """Score stored completions with more judges.

    Args:
        arguments: `out=`, `judge=`, `judges.*`, `launcher.*`.
        runs: ids, or how they begin; all where None is given.
        where: filter terms, see `runs.filters`.
        view: whether judges read the original prompt or the one that was sent.
        watcher: told about the progress.
        workshop: models that are loaded already.
    """
    request, store = _opened("judge", arguments)
    settings = next(request.points())
    if settings.judge in ((), ("auto",)):
        raise ConfigError("judge= is missing, as in adversariallm judge out=out judge=exact_match")
    ids = choose(store, runs, where, derived=True)
    command = Command("judge", arguments, tuple(runs or ()), _terms(where), view)
    pairs = [(run_id, name) for name in settings.judge for run_id in ids]
    return carry_out_judging(command, pairs, store, settings, watcher, workshop)


def _carry_out(
    verb: str,
    derive: Derive,
    arguments: tuple[str, ...],
    *,
    runs: Sequence[str] | None = None,
    where: Sequence[str] | None = None,
    watcher: Watcher | None = None,
    workshop: Workshop | None = None,
) -> Finished:
    """Plan a pass and carry it out.

    Args:
        verb: its name.
        derive: gives the specification of the later run.
        arguments: as typed.
        runs: ids of stored runs, or how they begin.
        where: filter terms, see `runs.filters`. Without both: all runs but those that a pass made.
        watcher: told about the progress.
        workshop: models that are loaded already.
    """
    found, store, settings = plan_pass(verb, arguments, runs, where, derive)
    command = Command(verb, arguments, tuple(runs or ()), _terms(where))
    return carry_out(command, found, settings, store, watcher, workshop)


def repeat(
    command: Command, *, watcher: Watcher | None = None, workshop: Workshop | None = None
) -> Finished:
    """Carry a command out once more; what is done is skipped."""
    if command.verb == "run":
        return run(*command.arguments, watcher=watcher, workshop=workshop)
    if command.verb not in KEYS:
        raise StoreError(f"this release knows no pass {command.verb!r}")
    options: dict[str, Any] = {"runs": command.runs or None, "where": command.where}
    if command.verb == "judge":
        options["view"] = command.view
    work = {"sample": sample, "transfer": transfer, "extend": extend, "judge": judge}[command.verb]
    return work(*command.arguments, **options, watcher=watcher, workshop=workshop)


def preview(
    verb: str,
    *arguments: str,
    runs: Sequence[str] | None = None,
    where: Sequence[str] | None = None,
) -> Plan:
    """What a pass with these arguments would do; nothing is loaded or written."""
    derive = {"sample": sampled, "transfer": transferred, "extend": extended}[verb]
    return plan_pass(verb, arguments, runs, where, derive)[0]


def plan_pass(
    verb: str,
    arguments: Sequence[str],
    runs: Sequence[str] | None,
    where: Sequence[str] | None,
    derive: Derive,
) -> tuple[Plan, Store, Settings]:
    """The runs that a pass amounts to; what cannot be done is skipped with the reason.

    Raises:
        NeedsError: none of the chosen runs can be taken, with the reason of the first.
    """
    request, store = _opened(verb, arguments)
    settings = next(request.points())
    shared = Pass(request, Planner(installed(store)), store)
    planned: dict[str, Planned] = {}
    refused: list[Skipped] = []
    for run_id in choose(store, runs, where):
        for point in request.points():
            try:
                header = store.header(run_id)
                spec = derive(shared, spec_of(header), header, point)
                planned.setdefault(spec.run_id, _planned(store, run_id, spec, point))
            except (NeedsError, CorruptRunError) as error:
                refused.append(Skipped(run_id[:8], str(error)))
    if refused and not planned:
        raise NeedsError(_first_reason(request, store, refused))
    shared.planner.finish(request)
    todo, skipped = [], refused
    for found in planned.values():
        reason = skip_reason(store.status(found.run_id), found, settings.retry)
        if reason:
            skipped.append(Skipped(found.task.spec.label, reason, found))
        else:
            todo.append(found)
    ordered = Plan(tuple(todo)).groups()
    notes = (*request.notes, *shared.planner.notes)
    plan = Plan(tuple(one for group in ordered for one in group), tuple(skipped), notes)
    return plan, store, settings


def _first_reason(request: Request, store: Store, refused: Sequence[Skipped]) -> str:
    """Why the first run was refused of those whose attack was spoken of, and how many there are."""
    spoken = {key.split(".")[1] for key in request.typed if key.startswith("attacks.")}

    def about(skipped: Skipped) -> bool:
        try:
            run_id = _whole_id(store, list(store.runs()), skipped.label)
            return store.header(run_id)["config"]["attack"]["name"] in spoken
        except StoreError:
            return False

    first = next(filter(about, refused), refused[0]) if spoken else refused[0]
    more = f" ({len(refused)} runs are refused in all)" if len(refused) > 1 else ""
    return first.reason + more


def _planned(store: Store, source: str, spec: RunSpec, settings: Settings) -> Planned:
    task = task_of(store.read(source)).model_copy(update={"spec": spec})
    return Planned(spec.run_id, task, settings, resources_key(spec))


def _opened(verb: str, arguments: Sequence[str]) -> tuple[Request, Store]:
    """The parsed command and the store that it names.

    Raises:
        ConfigError: a key that this pass does not take.
        StoreError: there is no such store.
    """
    request = read(arguments)
    for key, text in request.typed.items():
        if key.split(".")[0] not in KEYS[verb]:
            raise ConfigError(
                f"{text!r}: {verb} takes {', '.join(KEYS[verb])}; which runs it is for is said "
                "with their ids or with --where"
            )
        if key in request.axes and key.split(".")[0] in COMMON:
            raise ConfigError(f"{key} holds for the whole command, it cannot be swept")
    known = {**request.values, **request.axes}
    values = {**{k: v for k, v in _STAND_INS.items() if k not in known}, **request.values}
    whole = replace(request, values=values)
    store = open_store(next(whole.points()))
    if not (store.root / "store.json").is_file():
        raise StoreError(
            f"{store.root} is no run store: expected the folder that `run` got as out="
        )
    return whole, store


def choose(
    store: Store,
    runs: Sequence[str] | None = None,
    where: Iterable[str] | None = None,
    *,
    derived: bool = False,
) -> list[str]:
    """Ids of the stored runs that a pass is for.

    Args:
        store: where they are.
        runs: ids, or how they begin.
        where: filter terms that must hold as well. Without both: all runs.
        derived: take runs that another pass made even where nobody asks for them.

    Raises:
        ConfigError: `runs` is empty, or no run fits; nobody means all of them by that.
        StoreError: an id fits no run, or several.
    """
    terms = _terms(where)
    if runs is not None and not runs:
        raise ConfigError("runs=[]: expected ids of stored runs; leave it out for all of them")
    if runs is None and not terms and derived:
        return list(store.runs())
    from adversariallm.runs.index import Index

    index = Index(store)
    try:
        found = {row.run_id: row.values[0] for row in index.select(terms, ("parent.run_id",))}
    finally:
        index.close()
    if runs is not None:
        known = list(store.runs())
        named = dict.fromkeys(_whole_id(store, known, text) for text in runs)
        # a damaged run is not in the index; who names it is told what is wrong with it
        kept = [run_id for run_id in named if not terms or run_id in found]
    else:
        asked = derived or any("parent" in term or "run_id" in term for term in terms)
        kept = [run_id for run_id, parent in found.items() if asked or parent is None]
    if terms and not kept:
        raise ConfigError(_why_nothing(store, terms, runs, list(found)))
    return kept


def _terms(where: Iterable[str] | None) -> tuple[str, ...]:
    """Filter texts, also where just one was given."""
    return (where,) if isinstance(where, str) else tuple(where or ())


def _why_nothing(
    store: Store, terms: Sequence[str], runs: Sequence[str] | None, left_out: list[str]
) -> str:
    from adversariallm.runs.filters import parse, why_none

    shown = " ".join(f"--where {term}" for term in terms)
    if left_out and runs is not None:
        return f"{shown}: none of the runs named with --id fits"
    if left_out:
        return (
            f"{shown}: only runs that a pass made fit ({', '.join(i[:8] for i in left_out[:5])}); "
            "take them with --id, or with parent.kind=inputs among the terms"
        )
    headers = [store.header(run_id) for run_id in store.runs()]
    return f"{shown}: {why_none(parse(terms), headers)}"


def _whole_id(store: Store, known: Sequence[str], text: str) -> str:
    found = [run_id for run_id in known if run_id.startswith(text)]
    if len(found) != 1:
        what = "no run starts" if not found else f"{len(found)} runs start"
        raise StoreError(f"{what} with {text!r} in {store.root}; `runs list` shows all ids")
    return found[0]
