"""Later passes over stored runs: more samples, other models, more steps, more judges.

Each is planned here into runs of the usual kind, so that claims, launchers, resume and judging are
those of the first pass (`runs.campaign`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from adversariallm.core.budget import Budget
from adversariallm.core.errors import ConfigError, NeedsError, StoreError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.runs.campaign import (
    Command,
    Finished,
    Watcher,
    carry_out,
    carry_out_judging,
    run,
)
from adversariallm.runs.files import CorruptRunError
from adversariallm.runs.lookups import installed, open_store
from adversariallm.runs.plan import Plan, Planned, Planner, Skipped, resources_key, skip_reason
from adversariallm.runs.settings import Request, Settings, configure, explain_invalid, read
from adversariallm.runs.shields import check_stack
from adversariallm.runs.spec import Parent, RunSpec, Stopping
from adversariallm.runs.stored import STATE, raisable, spec_of, task_of

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
_EXTENDABLE = ("done", "stopped: budget")

_Derive = Callable[["_Pass", RunSpec, Mapping[str, Any], Settings], RunSpec]


@dataclass(frozen=True)
class _Pass:
    """What all runs of one pass share.

    Attributes:
        request: the command.
        planner: looks models, defenses and judges up, each once.
        store: where the stored runs are.
    """

    request: Request
    planner: Planner
    store: Store

    def typed(self, key: str) -> bool:
        """Whether the command says something about a key, or about a part of it."""
        return any(k == key or k.startswith(f"{key}.") for k in self.request.typed)


def sample(*arguments: str, **options: Any) -> Finished:
    """Make more completions of stored inputs.

    With the decoding of the stored run they are put beside it. Other decoding gives a run of its
    own that names the stored one, so that nothing mixes.

    Args:
        arguments: `out=`, `generation_config.*`, `completions=` (which steps), `judge=`, ...
        options: see `_carry_out`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
    """
    return _carry_out("sample", _sampled, arguments, **options)


def transfer(*arguments: str, **options: Any) -> Finished:
    """Send stored inputs to other models, or to the same behind a defense or system prompt.

    Args:
        arguments: `out=`, `model=`, `models.*`, `defense=`, `generation_config.*`, ...
        options: see `_carry_out`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
        NeedsError: none of the chosen runs can be sent, e.g. because its inputs are embeddings.
    """
    return _carry_out("transfer", _transferred, arguments, **options)


def extend(*arguments: str, **options: Any) -> Finished:
    """Go on with finished searches.

    Args:
        arguments: `out=`, `attacks.NAME.num_steps=` or `budget.*`, ...
        options: see `_carry_out`.

    Raises:
        ConfigError: something in the arguments is wrong; nothing was loaded.
        NeedsError: none of the chosen runs can be extended, with the reason of the first.
    """
    return _carry_out("extend", _extended, arguments, **options)


def judge(
    *arguments: str,
    runs: Sequence[str] = (),
    where: Sequence[str] = (),
    view: View = "clean",
    watcher: Watcher | None = None,
    workshop: Workshop | None = None,
) -> Finished:
    """Score stored completions with more judges.

    Args:
        arguments: `out=`, `judge=`, `judges.*`, `launcher.*`.
        runs: ids, or how they begin; all where none is given.
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
    command = Command("judge", arguments, tuple(runs), tuple(where), view)
    pairs = [(run_id, name) for name in settings.judge for run_id in ids]
    return carry_out_judging(command, pairs, store, settings, watcher, workshop)


def _carry_out(
    verb: str,
    derive: _Derive,
    arguments: tuple[str, ...],
    *,
    runs: Sequence[str] = (),
    where: Sequence[str] = (),
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
    command = Command(verb, arguments, tuple(runs), tuple(where))
    return carry_out(command, found, settings, store, watcher, workshop)


def repeat(
    command: Command, *, watcher: Watcher | None = None, workshop: Workshop | None = None
) -> Finished:
    """Carry a command out once more; what is done is skipped."""
    if command.verb == "run":
        return run(*command.arguments, watcher=watcher, workshop=workshop)
    if command.verb not in KEYS:
        raise StoreError(f"this release knows no pass {command.verb!r}")
    options: dict[str, Any] = {"runs": command.runs, "where": command.where}
    if command.verb == "judge":
        options["view"] = command.view
    work = {"sample": sample, "transfer": transfer, "extend": extend, "judge": judge}[command.verb]
    return work(*command.arguments, **options, watcher=watcher, workshop=workshop)


def preview(
    verb: str, *arguments: str, runs: Sequence[str] = (), where: Sequence[str] = ()
) -> Plan:
    """What a pass with these arguments would do; nothing is loaded or written."""
    derive = {"sample": _sampled, "transfer": _transferred, "extend": _extended}[verb]
    return plan_pass(verb, arguments, runs, where, derive)[0]


def plan_pass(
    verb: str,
    arguments: Sequence[str],
    runs: Sequence[str],
    where: Sequence[str],
    derive: _Derive,
) -> tuple[Plan, Store, Settings]:
    """The runs that a pass amounts to; what cannot be done is skipped with the reason.

    Raises:
        NeedsError: none of the chosen runs can be taken, with the reason of the first.
    """
    request, store = _opened(verb, arguments)
    settings = next(request.points())
    shared = _Pass(request, Planner(installed(store)), store)
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
        raise NeedsError(refused[0].reason)
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
    store: Store, runs: Sequence[str], where: Iterable[str], *, derived: bool = False
) -> list[str]:
    """Ids of the stored runs that a pass is for.

    Args:
        store: where they are.
        runs: ids, or how they begin.
        where: filter terms.
        derived: take runs that another pass made even where nobody asks for them.

    Raises:
        StoreError: an id fits no run, or several.
    """
    terms = [where] if isinstance(where, str) else list(where)
    if runs:
        known = list(store.runs())
        return list(dict.fromkeys(_whole_id(store, known, text) for text in runs))
    if not terms and derived:
        return list(store.runs())
    from adversariallm.runs.index import Index

    index = Index(store)
    try:
        found = index.select(terms, ("parent.run_id",))
    finally:
        index.close()
    asked = derived or any("parent" in term or "run_id" in term for term in terms)
    return [row.run_id for row in found if asked or row.values[0] is None]


def _whole_id(store: Store, known: Sequence[str], text: str) -> str:
    found = [run_id for run_id in known if run_id.startswith(text)]
    if len(found) != 1:
        what = "no run starts" if not found else f"{len(found)} runs start"
        raise StoreError(f"{what} with {text!r} in {store.root}; `runs list` shows all ids")
    return found[0]


# What becomes of a stored run


def _sampled(shared: _Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings) -> RunSpec:
    """The stored run with larger amounts, or a run of its own where the decoding differs."""
    generation = _generation(spec, point)
    changed = {"generation": generation, "amounts": _amounts(shared, spec, generation, point)}
    if generation.per_sample() == spec.generation.per_sample():
        return spec.model_copy(update=changed)
    return _sending(spec, header).model_copy(update=changed)


def _transferred(
    shared: _Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings
) -> RunSpec:
    """The inputs of a stored run, sent to what the command names."""
    if shared.store.tensor_file(header["run_id"]) is not None:
        raise NeedsError(
            f"run {header['run_id'][:8]}: its inputs are embeddings of "
            f"{' and '.join(m.name for m in spec.models)}; no other model reads them and no text "
            "stands for them, so they cannot be transferred"
        )
    info = replace(ATTACKS.load(spec.attack.name).INFO, helpers={}, helper_needs={})
    planner = shared.planner
    shields = planner.shields(point)
    models, gives = spec.models[:1], None
    if shared.typed("model"):
        found, gives = planner.models(point, replace(info, fits="many"))
        models = tuple(found)
    elif shared.typed("models"):
        raise ConfigError("models.NAME.*: name the model as well, with model=NAME")
    if gives is not None:
        check_stack(shields, gives)
    behind = tuple(planner.shield_spec(shield, point) for shield in shields)
    generation = _generation(spec, point)
    same = [m.identity for m in models] == [m.identity for m in spec.models]
    if same and behind == spec.defense and generation == spec.generation:
        raise NeedsError(
            f"run {header['run_id'][:8]}: this is the model it was made for; give another model=, "
            "models.NAME.system_prompt= or defense="
        )
    return _sending(spec, header).model_copy(
        update={
            "models": models,
            "defense": behind,
            "knowledge": "unaware",
            "generation": generation,
            "helpers": planner.helpers(info, shields, point),
            "assets": planner.assets(shields),
            "budget": point.budget,
            "amounts": _amounts(shared, spec, generation, point),
        }
    )


def _sending(spec: RunSpec, header: Mapping[str, Any]) -> RunSpec:
    """A run that sends the stored inputs again and searches nothing."""
    parent = spec.parent
    if parent is None or parent.kind != "inputs":
        who = "+".join(m.name for m in spec.models)
        made_for = who + "".join(f" behind {d.name}" for d in spec.defense)
        parent = Parent(run_id=header["run_id"], kind="inputs", made_for=made_for)
    return spec.model_copy(
        update={"parent": parent, "budget": Budget(), "stopping": Stopping(), "judge": None}
    )


def _extended(shared: _Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings) -> RunSpec:
    """The stored run with more steps."""
    name, run_id = spec.attack.name, header["run_id"]
    info = ATTACKS.load(name).INFO
    option = raisable(name)
    if option is None:
        raise NeedsError(
            f"run {run_id[:8]}: attack {name!r} cannot be extended: its earlier steps depend on "
            "how many there will be, or it decides itself when it ends; run it again"
        )
    if spec.parent is not None and spec.parent.kind == "inputs":
        raise NeedsError(f"run {run_id[:8]} sends stored inputs: extend the run it names")
    if info.version != spec.attack.version:
        raise NeedsError(
            f"run {run_id[:8]}: it was made by version {spec.attack.version} of {name!r}, this is "
            f"version {info.version}, which gives other results; run it again"
        )
    if info.cost == "sampling" and (spec.budget.limited or point.budget.limited):
        raise NeedsError(
            f"run {run_id[:8]}: its samples are the search, and a limit counted them; run it again"
        )
    if not str(header["status"]).startswith(_EXTENDABLE):
        raise NeedsError(
            f"run {run_id[:8]} ended by its own rule ({header['status']}), not for want of steps"
        )
    if not (shared.store.run_dir(run_id) / STATE).exists():
        raise NeedsError(
            f"run {run_id[:8]}: the state of its search was not stored (an older release, or a "
            "bundle), so it cannot be extended; run it again with more steps"
        )
    changed = _raised(shared, spec, header, point, option)
    amounts = _amounts(shared, spec, spec.generation, point)
    parent = Parent(run_id=run_id, kind="extend", made_for="+".join(m.name for m in spec.models))
    return spec.model_copy(update={**changed, "parent": parent, "amounts": amounts})


def _raised(
    shared: _Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings, option: str
) -> dict[str, Any]:
    """The attack and the budget that an extended run has."""
    name, run_id = spec.attack.name, header["run_id"]
    given = point.attacks.get(name, {})
    if set(given) - {option}:
        other = sorted(set(given) - {option})[0]
        raise ConfigError(
            f"attacks.{name}.{other}: an extended run keeps its options; only {option} can grow"
        )
    before = spec.attack.options[option]
    options = {**spec.attack.options, **given}
    if options[option] < before:
        raise NeedsError(f"run {run_id[:8]} has {option}={before} already")
    limited = str(header["status"]).startswith("stopped: budget")
    if limited and not shared.typed("budget"):
        raise NeedsError(
            f"run {run_id[:8]} ended because {header['status'].removeprefix('stopped: ')}; give a "
            "larger budget.*"
        )
    if not limited and options[option] == before:
        raise NeedsError(
            f"run {run_id[:8]} has all its {before} steps; give attacks.{name}.{option}="
        )
    config = configure("attacks", name, options)
    shared.planner.uses(f"attacks.{name}")
    attack = spec.attack.model_copy(update={"options": config.semantic()})
    budget = point.budget if shared.typed("budget") else spec.budget
    return {"attack": attack, "budget": budget}


def _generation(spec: RunSpec, point: Settings) -> GenerationConfig:
    try:
        return GenerationConfig(**{**spec.generation.model_dump(), **point.generation_config})
    except ValidationError as error:
        raise ConfigError(explain_invalid(error, "generation_config")) from None


def _amounts(shared: _Pass, spec: RunSpec, generation: GenerationConfig, point: Settings) -> Any:
    """How much is sampled and judged: as in the stored run where nothing else is said."""
    judges = spec.amounts.judges
    if shared.typed("judge"):
        judges = point.judge
        for name in judges:
            shared.planner.judge(name, point)
    count = spec.amounts.num_return_sequences
    if "num_return_sequences" in point.generation_config:
        count = generation.num_return_sequences
    return spec.amounts.model_copy(
        update={
            "num_return_sequences": count,
            "completions": point.completions
            if shared.typed("completions")
            else spec.amounts.completions,
            "timing": point.timing if shared.typed("timing") else spec.amounts.timing,
            "judges": judges,
        }
    )
