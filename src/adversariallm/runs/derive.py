"""What a later pass makes of one stored run: the specification of the run that it asks for.

It reads specifications and headers; choosing runs and carrying them out is the business of
`runs.passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from adversariallm.core.budget import Budget
from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import AttackInfo
from adversariallm.runs.plan import Planner
from adversariallm.runs.settings import Request, Settings, configure, explain_invalid
from adversariallm.runs.shields import check_stack
from adversariallm.runs.spec import Amounts, Parent, RunSpec, Stopping
from adversariallm.runs.stored import STATE, raisable

if TYPE_CHECKING:
    from adversariallm.runs.store import Store

_EXTENDABLE = ("done", "stopped: budget")


@dataclass(frozen=True)
class Pass:
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


Derive = Callable[[Pass, RunSpec, Mapping[str, Any], Settings], RunSpec]
"""From a stored run's specification and header, under the settings of a pass, to the later run."""


def sampled(shared: Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings) -> RunSpec:
    """The stored run with larger amounts, or a run of its own where the decoding differs."""
    generation = _generation(spec, point)
    changed = {"generation": generation, "amounts": _amounts(shared, spec, generation, point)}
    if generation.per_sample() == spec.generation.per_sample():
        return spec.model_copy(update=changed)
    return _sending(spec, header).model_copy(update=changed)


def transferred(shared: Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings) -> RunSpec:
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


def extended(shared: Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings) -> RunSpec:
    """The stored run with more steps."""
    option = _checked_option(shared, spec, header, point)
    changed = _raised(shared, spec, header, point, option)
    amounts = _amounts(shared, spec, spec.generation, point)
    parent = Parent(run_id=header["run_id"], kind="extend")
    return spec.model_copy(update={**changed, "parent": parent, "amounts": amounts})


def _checked_option(shared: Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings) -> str:
    """The option that may grow, where this run can be extended at all.

    Raises:
        NeedsError: it cannot, with the reason.
    """
    name, run_id = spec.attack.name, header["run_id"]
    info: AttackInfo = ATTACKS.load(name).INFO
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
    return option


def _raised(
    shared: Pass, spec: RunSpec, header: Mapping[str, Any], point: Settings, option: str
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


def _amounts(shared: Pass, spec: RunSpec, generation: GenerationConfig, point: Settings) -> Amounts:
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
