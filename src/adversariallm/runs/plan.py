"""From the settings of a command to the runs that remain to be done: pure, nothing is loaded.

What it must know of models, data, judges and the store it asks `Sources` for; carrying runs out is
the business of `runs.execute`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from adversariallm.core.budget import Limits
from adversariallm.core.config import FrozenConfig, stable_hash
from adversariallm.core.errors import ConfigError, DataError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS, DATASETS, DEFENSES
from adversariallm.core.protocols import AttackInfo, Needs
from adversariallm.runs.presets import Preset, presets, with_typed
from adversariallm.runs.settings import Request, Settings, check_judge, configure, explain_invalid
from adversariallm.runs.shields import Shield, check_knowledge, check_stack
from adversariallm.runs.spec import (
    Amounts,
    BehaviorSet,
    ModelSpec,
    PluginSpec,
    RunSpec,
    RunTask,
    Stopping,
)

if TYPE_CHECKING:
    from adversariallm.datasets import Dataset


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before it is loaded.

    Attributes:
        identity: the JSON facts that fix its behavior.
        gives: what it can give to an attack.
        counts_flops: whether the FLOPs of its calls are known.
    """

    identity: Mapping[str, Any]
    gives: Needs
    counts_flops: bool = True


@dataclass(frozen=True)
class Sources:
    """Where the plan looks things up; each is called once per distinct question.

    Attributes:
        model: facts about a model by name and loading options; makes no download.
        dataset: the selected items of a dataset by name and options.
        judge: fingerprint of a judge by name and options.
        asset: SHA-256 of an asset that is at hand; an error with the command that fetches it else.
        status: what the store knows about a run id: done, held, failed, or anything else for work
            that remains.
        text: the text of an asset that is at hand.
    """

    model: Callable[[str, Mapping[str, Any]], ModelFacts]
    dataset: Callable[[str, Mapping[str, Any]], Dataset]
    judge: Callable[[str, Mapping[str, Any]], str]
    asset: Callable[[str], str]
    status: Callable[[str], str] = field(default=lambda run_id: "new")
    text: Callable[[str], str] = field(default=lambda asset: "")


@dataclass(frozen=True)
class Planned:
    """One run with its id and the settings it came from.

    Attributes:
        resources_key: equal for runs that need the same things loaded.
    """

    run_id: str
    task: RunTask
    settings: Settings
    resources_key: str


def resources_key(spec: RunSpec) -> str:
    """Equal for runs that need the same things loaded."""
    parts = [spec.models, spec.defense, sorted(spec.helpers.items()), spec.judge, spec.knowledge]
    return stable_hash([parts, [m.options for m in spec.models], spec.stopping])


@dataclass(frozen=True)
class Skipped:
    """A run, or a combination of settings, that is not carried out, and why."""

    label: str
    reason: str
    run: Planned | None = None


@dataclass(frozen=True)
class Plan:
    """What a command amounts to.

    Attributes:
        todo: runs to carry out, those that need the same things loaded next to each other.
        skipped: what is left out, each with its reason.
        notes: remarks for the user.
    """

    todo: tuple[Planned, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def done(self) -> tuple[Planned, ...]:
        """Runs that are stored already: judges and further samples may still be missing."""
        return tuple(s.run for s in self.skipped if s.run and s.reason.startswith("already done"))

    def groups(self) -> list[tuple[Planned, ...]]:
        """The runs to carry out, by what has to be loaded."""
        return _grouped(self.todo)


def _grouped(runs: Sequence[Planned]) -> list[tuple[Planned, ...]]:
    groups: dict[str, list[Planned]] = {}
    for run in runs:
        groups.setdefault(run.resources_key, []).append(run)
    return [tuple(group) for group in groups.values()]


def plan(request: Request, sources: Sources, *, retry: bool = False) -> Plan:
    """All runs that the command asks for, less those the store has.

    Args:
        request: the parsed command.
        sources: what is known about the world.
        retry: plan runs again that failed before.

    Raises:
        ConfigError: a name or value is wrong.
        NeedsError: an attack needs what the model, the defense or the data cannot give.
    """
    planner = Planner(sources)
    runs: dict[str, Planned] = {}
    repeated = 0
    points = list(request.points())
    planner.require_assets(points)
    typed = tuple(word for word in request.overrides if not _WHERE.match(word))
    for settings in points:
        for found in planner.runs(settings, typed):
            repeated += found.run_id in runs
            runs.setdefault(found.run_id, found)
    planner.finish(request)
    todo, skipped = [], list(planner.refused.values())
    for found in runs.values():
        status = sources.status(found.run_id)
        reason = skip_reason(status, found, retry)
        if reason:
            skipped.append(Skipped(found.task.spec.label, reason, found))
        else:
            todo.append(found)
    notes = [*request.notes, *planner.notes]
    if repeated:
        notes.append(f"{repeated} runs of the sweep are equal to others and count once")
    ordered = [run for group in _grouped(todo) for run in group]
    return Plan(tuple(ordered), tuple(skipped), tuple(notes))


def skip_reason(status: str, run: Planned, retry: bool) -> str:
    """Why a run is not to be carried out; empty where it is."""
    where = f"{run.settings.out}/runs/{run.run_id[:2]}/{run.run_id}"
    if status == "done":
        return f"already done in {where}"
    if status == "held":
        return f"another process is working on it ({run.run_id})"
    if status == "failed" and not retry:
        return f"failed before ({run.run_id}); repeat the command with retry=true to try again"
    return ""


_WHERE = re.compile(r"[+~]*(out|store|launcher|hydra|tracking|retry)\b")
"""Words that say where and by whom a run is made: not kept with it, so equal runs stay equal."""

_FitSet = tuple[BehaviorSet, Mapping[str, Any], tuple[dict[str, Any], ...]]


@dataclass(frozen=True)
class _Case:
    """What all seeds and behaviors of one point share: the specification but for `fit` and `seed`.

    Attributes:
        base: a specification whose fit set and seed are place holders.
        semantic: its semantic values, worked out once.
        resources_key: see `Planned`.
        sets: fit sets, their semantic values and their rows.
        evaluated: rows of the evaluation set where it is not the fit set.
    """

    base: RunSpec
    semantic: Mapping[str, Any]
    resources_key: str
    sets: tuple[_FitSet, ...]
    evaluated: tuple[dict[str, Any], ...] = ()


class Planner:
    """Turns points of the sweep into runs and remembers what it looked up."""

    def __init__(self, sources: Sources) -> None:
        """Look things up in `sources`."""
        self.sources = sources
        self.refused: dict[str, Skipped] = {}
        self.notes: dict[str, None] = {}
        self._memo: dict[tuple[str, ...], Any] = {}
        self._used: set[str] = set()
        self._presets: dict[str, bool] = {}

    def _once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def require_assets(self, points: Iterable[Settings]) -> None:
        """Look for the texts by others that attacks and defenses need, before any model is.

        Of `attack=all` only those of the defenses: attacks that lack theirs are left out.

        Raises:
            NeedsError: naming every one that is not here.
        """
        wanted: dict[str, None] = {}
        for settings in points:
            wanted |= dict.fromkeys(self._wanted_assets(settings))
        self._assets(list(wanted))

    def _wanted_assets(self, settings: Settings) -> tuple[str, ...]:
        parts = (settings.attack, settings.preset, settings.attacks)
        shields = (settings.defense, settings.defenses)
        behind = partial(self._shield_assets, settings)
        found: tuple[str, ...] = self._once(("defenses' assets", repr(shields)), behind)
        if settings.attack == "all":
            return found
        make = partial(self._attack_assets, ATTACKS.resolve(settings.attack), settings)
        own: tuple[str, ...] = self._once(("attack's assets", repr(parts)), make)
        return (*own, *found)

    def _attack_assets(self, attack: str, settings: Settings) -> tuple[str, ...]:
        config = self._configured(attack, settings)
        info: AttackInfo = ATTACKS.load(attack).INFO.with_options(config)
        return info.assets_of(config)

    def _shield_assets(self, settings: Settings) -> tuple[str, ...]:
        return tuple(a for shield in self.shields(settings) for a in shield.wanted.assets)

    def _configured(self, attack: str, settings: Settings) -> FrozenConfig:
        """An attack's options: the user's over those of the preset."""
        chosen = self._preset(attack, settings.preset)
        self._used.add(f"attacks.{attack}")
        options = with_typed(chosen.options, settings.attacks.get(attack, {}))
        return configure("attacks", attack, options)

    def runs(self, settings: Settings, overrides: tuple[str, ...]) -> Iterator[Planned]:
        """The runs of one point."""
        if settings.protocol is not None:
            from adversariallm.runs.protocol import under_protocol

            try:
                settings, notes = under_protocol(settings, self.sources.text)
            except DataError as error:
                raise NeedsError(str(error)) from None
            self.notes |= dict.fromkeys(notes)
        everything = settings.attack == "all"
        for name in self._every_attack() if everything else [ATTACKS.resolve(settings.attack)]:
            # everything but the seed is worked out once for all seeds
            seedless = settings.model_copy(update={"seed": 0})
            try:
                make = partial(self._case, name, settings, overrides)
                case: _Case = self._once(("case", name, repr(seedless)), make)
            except NeedsError as error:
                if not everything:
                    raise
                self.refused.setdefault(str(error), Skipped(name, str(error)))
                continue
            yield from _runs(case, settings)

    def _every_attack(self) -> list[str]:
        """Names of the attacks that can be imported; the others are refused once."""
        broken: dict[str, str] = self._once(("broken",), ATTACKS.broken)
        for name, reason in broken.items():
            self.refused.setdefault(reason, Skipped(name, reason))
        return [name for name in ATTACKS.names() if name not in broken]

    def _case(self, attack: str, settings: Settings, overrides: tuple[str, ...]) -> _Case:
        chosen = self._preset(attack, settings.preset)
        config = self._configured(attack, settings)
        info: AttackInfo = ATTACKS.load(attack).INFO.with_options(config)
        shields = self.shields(settings)
        texts = {**self._assets(info.assets_of(config)), **self.assets(shields)}
        data: Dataset = self._dataset(settings)
        if info.target == "required":
            data.require_targets(attack)
        helpers = self.helpers(info, shields, settings)
        models, gives = self.models(settings, info)
        _check_needs(info, settings, gives, shields)
        self._check_flops(settings, helpers)
        generation = _generation(info, chosen, settings)
        sets = _fit_sets(info, data)
        evaluated, rows = self._evaluated(info, settings, sets)
        base = RunSpec(
            attack=PluginSpec(name=attack, version=info.version, options=config.semantic()),
            models=models,
            defense=tuple(self.shield_spec(shield, settings) for shield in shields),
            knowledge=settings.knowledge if shields else "unaware",
            fit=BehaviorSet(dataset="", content_hash="", ids=(), keys=()),
            evaluated=evaluated,
            generation=generation,
            budget=settings.budget,
            stopping=self._stopping(settings),
            helpers=helpers,
            judge=self._reward(info, settings),
            assets=texts,
            amounts=Amounts(
                num_return_sequences=generation.num_return_sequences,
                completions=settings.completions,
                completion_block=settings.completion_block,
                judges=self._judges(settings, data),
                timing=settings.timing,
            ),
            protocol=settings.protocol,
            overrides=overrides,
        )
        return _Case(base, base.semantic(), resources_key(base), sets, rows)

    def _evaluated(
        self, info: AttackInfo, settings: Settings, sets: tuple[_FitSet, ...]
    ) -> tuple[BehaviorSet | None, tuple[dict[str, Any], ...]]:
        """The fit set and the held-out items, which get the same input; None without any."""
        if settings.held_out is None:
            return None, ()
        if info.fits != "many":
            raise NeedsError(
                f"held_out is for attacks that fit many behaviors at once; {info.name!r} fits one "
                "per run"
            )
        name = DATASETS.resolve(settings.dataset)
        options = {**settings.datasets.get(name, {}), "idx": settings.held_out}
        data: Dataset = self._once(
            ("dataset", name, repr(options)), partial(self.sources.dataset, name, options)
        )
        fit, _, rows = sets[0]
        held, _, held_rows = _fit_sets(info, data)[0]
        new = [k for k, key in enumerate(held.keys) if key not in fit.keys]
        evaluated = fit.model_copy(
            update={
                "ids": (*fit.ids, *(held.ids[k] for k in new)),
                "keys": (*fit.keys, *(held.keys[k] for k in new)),
            }
        )
        return evaluated, (*rows, *(held_rows[k] for k in new))

    def _preset(self, attack: str, name: str | None) -> Preset:
        if name is None:
            return Preset(source="defaults")
        found = presets(attack)
        self._presets[name] = self._presets.get(name, False) or name in found
        if name not in found:
            self.notes[f"attack {attack} has no preset {name!r}: its defaults hold"] = None
        return found.get(name, Preset(source="defaults"))

    def _dataset(self, settings: Settings) -> Dataset:
        name = DATASETS.resolve(settings.dataset)
        options = settings.datasets.get(name, {})
        self._used.add(f"datasets.{name}")
        found: Dataset = self._once(
            ("dataset", name, repr(options)), partial(self.sources.dataset, name, options)
        )
        return found

    def _model(self, name: str, settings: Settings) -> tuple[ModelSpec, Needs]:
        facts = self._facts(name, settings)
        self._used.add(f"models.{name}")
        options = settings.models.get(name, {})
        spec = ModelSpec(name=name, identity=dict(facts.identity), options=options)
        return spec, facts.gives

    def _facts(self, name: str, settings: Settings) -> ModelFacts:
        options = settings.models.get(name, {})
        found: ModelFacts = self._once(
            ("model", name, repr(options)), partial(self.sources.model, name, options)
        )
        return found

    def _assets(self, names: Sequence[str]) -> dict[str, str]:
        """SHA-256 of every text by others that is named; see `hashes_of`."""
        return hashes_of(
            names, lambda name: self._once(("asset", name), partial(self.sources.asset, name))
        )

    def assets(self, shields: Sequence[Shield]) -> dict[str, str]:
        """SHA-256 of every text that the defenses need."""
        return self._assets([asset for shield in shields for asset in shield.wanted.assets])

    def uses(self, section: str) -> None:
        """Remember that a section of the settings, such as `attacks.gcg`, has an effect."""
        self._used.add(section)

    def models(
        self, settings: Settings, info: AttackInfo
    ) -> tuple[tuple[ModelSpec, ...], dict[str, Needs]]:
        """The models of a point, and what each gives."""
        if len(settings.model) > 1 and info.fits != "many":
            raise NeedsError(
                f"attack {info.name!r} fits one model per run, given {len(settings.model)}: "
                f"write model={','.join(settings.model)} without brackets for one run each"
            )
        found = {name: self._model(name, settings) for name in settings.model}
        return tuple(s for s, _ in found.values()), {n: g for n, (_, g) in found.items()}

    def shields(self, settings: Settings) -> tuple[Shield, ...]:
        """The defenses of the stack, outermost first."""
        shields = []
        for given in settings.defense:
            name = DEFENSES.resolve(given)
            self._used.add(f"defenses.{name}")
            config = configure("defenses", name, settings.defenses.get(name, {}))
            shields.append(Shield(DEFENSES.load(name).INFO, config))
        return tuple(shields)

    def shield_spec(self, shield: Shield, settings: Settings) -> PluginSpec:
        """The defense as a run stores it, with what fixes the judges and data sets it uses."""
        wanted = shield.wanted
        supplies: dict[str, dict[str, Any]] = {}
        if wanted.judges:
            supplies["judges"] = {name: self.judge(name, settings) for name in wanted.judges}
        for name, options in wanted.datasets.items():
            found: Dataset = self._once(
                ("dataset", name, repr(options)), partial(self.sources.dataset, name, options)
            )
            supplies.setdefault("datasets", {})[name] = stable_hash([b.key for b in found])
        return PluginSpec(
            name=shield.info.name,
            version=shield.info.version,
            options=shield.config.semantic(),
            supplies=supplies,
        )

    def helpers(
        self, info: AttackInfo, shields: Sequence[Shield], settings: Settings
    ) -> dict[str, ModelSpec]:
        """The helpers that an attack and its defenses need, by role."""
        users = [(f"attack {info.name!r}", info.helpers, info.helper_needs)]
        for shield in shields:
            wanted = shield.wanted
            users.append((f"defense {shield.info.name!r}", wanted.helpers, wanted.helper_needs))
        found: dict[str, ModelSpec] = {}
        for who, roles, needs in users:
            absent = [role for role in roles if role not in settings.helpers]
            if absent:
                what = " and ".join(f"{role} ({roles[role]})" for role in absent)
                give = " ".join(f"helpers.{role}=MODEL" for role in absent)
                count = "a helper model" if len(absent) == 1 else "helper models"
                raise NeedsError(f"{who} needs {count}: {what}; give {give}")
            for role in roles:
                name = settings.helpers[role]
                found[role], gives = self._model(name, settings)
                if needs.get(role, Needs.TEXT) & ~gives:
                    missing = ", ".join(str(n.name).lower() for n in needs[role] & ~gives)
                    raise NeedsError(
                        f"{who} needs {missing} of its helper {role}, which model {name!r} does "
                        f"not give; give helpers.{role} a local model"
                    )
        return dict(sorted(found.items()))

    def _check_flops(self, settings: Settings, helpers: Mapping[str, ModelSpec]) -> None:
        """Refuse a limit on FLOPs that nobody counts."""
        by_role = {"model": settings.model, **{r: (spec.name,) for r, spec in helpers.items()}}
        for role, names in by_role.items():
            limits: Limits = getattr(settings.budget, role, Limits())
            asked = settings.budget.flops is not None or limits.flops is not None
            for name in names if asked else ():
                if not self._facts(name, settings).counts_flops:
                    key = "budget.flops" if limits.flops is None else f"budget.{role}.flops"
                    raise NeedsError(
                        f"{key} cannot be held: {name!r} ({role}) is behind an endpoint and its "
                        "FLOPs are unknown. Limit budget.queries, budget.tokens or budget.cost, "
                        "or a local role alone (budget.ROLE.flops), or state "
                        f"models.NAME.active_params to count two per parameter and token"
                    )

    def judge(self, name: str, settings: Settings) -> str:
        """Fingerprint of a judge with the options of this point."""
        check_judge(name)
        self._used.add(f"judges.{name}")
        options = settings.judges.get(name, {})
        found: str = self._once(
            ("judge", name, repr(options)), partial(self.sources.judge, name, options)
        )
        return found

    def _stopping(self, settings: Settings) -> Stopping:
        rule = settings.stopping
        if rule.judge is None:
            return Stopping(loss=rule.loss)
        return Stopping(
            loss=rule.loss,
            judge=rule.judge,
            judge_fingerprint=self.judge(rule.judge, settings),
            threshold=rule.threshold,
        )

    def _reward(self, info: AttackInfo, settings: Settings) -> PluginSpec | None:
        if not info.judge:
            return None
        if settings.reward is None:
            raise NeedsError(
                f"attack {info.name!r} needs a judge's rewards inside its search; give reward=JUDGE"
            )
        fingerprint = self.judge(settings.reward, settings)
        options = {**settings.judges.get(settings.reward, {}), "fingerprint": fingerprint}
        return PluginSpec(name=settings.reward, version=1, options=options)

    def _judges(self, settings: Settings, data: Dataset) -> tuple[str, ...]:
        names = settings.judge
        if names == ("auto",):
            by_purpose = "exact_match" if data.info.purpose == "utility" else "refusal_prefix"
            names = (data.info.judge or by_purpose,)
        for name in names:
            self.judge(name, settings)
        return names

    def finish(self, request: Request) -> None:
        """Say which settings had no effect, and refuse a preset that no attack has."""
        for name, known in self._presets.items():
            if not known:
                raise ConfigError(
                    f"preset={name!r}: no attack of this command has it; "
                    "`adversariallm explain ATTACK` lists an attack's presets"
                )
        for key, text in request.typed.items():
            head, *rest = key.split(".")
            section = f"{head}.{'.'.join(rest[:-1]) if head == 'models' else ''.join(rest[:1])}"
            if rest and head in ("attacks", "datasets", "defenses", "models", "judges"):
                if section not in self._used:
                    self.notes[f"{text} has no effect: this command does not use {section}"] = None


def _runs(case: _Case, settings: Settings) -> Iterator[Planned]:
    """One run per fit set."""
    for fit, semantic, rows in case.sets:
        spec = case.base.model_copy(update={"seed": settings.seed, "fit": fit})
        run_id = stable_hash({**case.semantic, "seed": settings.seed, "fit": semantic})
        task = RunTask(spec=spec, fit=rows, evaluated=case.evaluated)
        yield Planned(run_id, task, settings, case.resources_key)


def _fit_sets(info: AttackInfo, data: Dataset) -> tuple[_FitSet, ...]:
    """One fit set per behavior, or one with all of them."""
    files = sorted(data.files.values())
    own = next((f for f in files if f.startswith("custom:")), None)
    content = stable_hash([data.info.name, data.info.version, files])
    behaviors = tuple(data)
    chunks = [behaviors] if info.fits == "many" else [(b,) for b in behaviors]
    sets = []
    for chunk in chunks:
        fit = BehaviorSet(
            dataset=own or data.info.name,
            content_hash=content,
            ids=tuple(b.id for b in chunk),
            keys=tuple(b.key for b in chunk),
        )
        sets.append((fit, fit.semantic(), tuple(b.to_dict() for b in chunk)))
    return tuple(sets)


def hashes_of(names: Sequence[str], asset: Callable[[str], str]) -> dict[str, str]:
    """SHA-256 of every text by others that is named.

    Args:
        names: ids of assets.
        asset: gives the hash of one; see `Sources`.

    Raises:
        NeedsError: naming all that are not at hand, with the command that fetches them.
    """
    found: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name in names:
        try:
            found[name] = asset(name)
        except DataError as error:
            problems[name] = str(error)
    first = next(iter(problems.values()), "")
    if len(problems) > 1:
        raise NeedsError(
            f"{len(problems)} texts by others are not at hand, the first because "
            f"{first.partition('; run:')[0]}; run: adversariallm assets fetch {' '.join(problems)}"
        )
    if problems:
        raise NeedsError(first)
    return found


def _check_needs(
    info: AttackInfo, settings: Settings, gives: Mapping[str, Needs], shields: Sequence[Shield]
) -> None:
    """Refuse an attack that the model, or what the defense lets through, cannot serve."""
    for model, given in gives.items():
        _require(info, given, f"model {model!r} gives", "use a local model")
    check_stack(shields, gives)
    check_knowledge(info, settings.knowledge, shields, soft=info.modality == "embedding")


def _require(info: AttackInfo, given: Needs, who: str, remedy: str) -> None:
    missing = info.needs & ~given
    if missing:
        names = ", ".join(str(m.name).lower() for m in missing)
        raise NeedsError(
            f"attack {info.name!r} needs {names}, but {who} only "
            f"{', '.join(str(g.name).lower() for g in given) or 'nothing'}; "
            f"{remedy}, or choose an attack that needs less"
        )


def _generation(info: AttackInfo, chosen: Preset, settings: Settings) -> GenerationConfig:
    """Decoding options: the user's, else the preset's, else the attack's, else the defaults."""
    merged = {**info.generation, **chosen.generation_config, **settings.generation_config}
    try:
        return GenerationConfig(**merged)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error, "generation_config")) from None
