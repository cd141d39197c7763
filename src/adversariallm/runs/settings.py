"""What a `run` command may say: every key with its type, and the sweep that the values span.

It checks keys and values and loads neither models nor data; `runs.plan` turns the settings of one
point of the sweep into runs.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from adversariallm.core.budget import ROLES, Budget
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError, UnknownNameError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS, DATASETS, DEFENSES
from adversariallm.runs.launch.options import Launcher
from adversariallm.runs.overrides import Override, parse, translate_hydra
from adversariallm.runs.spec import Amounts, Stopping

HELPER_ROLES = tuple(r for r in ROLES if r not in ("model", "judge"))
_Names = tuple[str, ...]


class StopRule(FrozenConfig):
    """When a search ends before its last step."""

    loss: float | None = Field(None, description="stop at a step whose loss is at or below this")
    judge: str | None = Field(None, description="judge whose verdict on a step stops the run")
    threshold: float = Field(
        Stopping.model_fields["threshold"].default, ge=0, le=1, description="score that stops"
    )


class StoreSettings(FrozenConfig):
    """How results are written."""

    compression: Literal["none", "zstd"] = Field("none", description="of the published run.json")
    ttl_s: float = Field(120.0, gt=0, description="silence after which a worker counts as dead")


class Settings(FrozenConfig):
    """The settings of one point of a sweep; the only place where a command's defaults stand."""

    model: _Names = Field(description="catalog name, hub id or folder; [a,b] attacks both at once")
    dataset: str = Field(description="name of a dataset")
    attack: str = Field(description="name of an attack, or `all`")
    judge: _Names = Field(
        ("auto",), description="judges of the stored answers; `auto` by dataset, `none` for none"
    )
    defense: _Names = Field(
        (), description="name of a defense, [a,b] for a stack that questions meet in order, `none`"
    )
    held_out: Any = Field(
        None, description="further items, as idx takes them, that a universal attack is tried on"
    )
    seed: int = Field(0, ge=0, description="seed of the search and of the samples")
    out: str = Field("out", description="directory of the run store")
    preset: str | None = Field(None, description="named options of the attacks")
    protocol: str | None = Field(
        None,
        description="harmbench, jailbreakbench, strongreject or bon: decoding, system prompt and "
        "judge as published, where not typed",
    )
    knowledge: Literal["unaware", "black_box", "adaptive"] = Field(
        "unaware", description="what the attacker sees of the defense"
    )
    completions: Literal["all", "last", "best", "best_so_far", "geometric", "none"] = Field(
        Amounts.model_fields["completions"].default, description="which steps get completions"
    )
    completion_block: int | None = Field(
        None, ge=1, description="make completions every so many steps"
    )
    timing: Literal["shared", "exclusive"] = Field(
        Amounts.model_fields["timing"].default, description="exclusive: seconds fit to publish"
    )
    reward: str | None = Field(None, description="judge that gives rewards inside the search")
    retry: bool = Field(False, description="try runs again that failed before")
    tracking: tuple[Literal["wandb", "mlflow"], ...] = Field(
        (), description="tell Weights & Biases or MLflow what happens; `none`"
    )
    generation_config: dict[str, Any] = Field({}, description="decoding, for every attack")
    budget: Budget = Budget()
    stopping: StopRule = StopRule()
    launcher: Launcher = Launcher()
    store: StoreSettings = StoreSettings()
    helpers: dict[str, str] = Field({}, description="role -> model")
    attacks: dict[str, dict[str, Any]] = Field({}, description="options by attack")
    datasets: dict[str, dict[str, Any]] = Field({}, description="options by dataset")
    models: dict[str, dict[str, Any]] = Field({}, description="loading options by model")
    defenses: dict[str, dict[str, Any]] = Field({}, description="options by defense")
    judges: dict[str, dict[str, Any]] = Field({}, description="options by judge")

    @field_validator("model", "judge", "defense", "tracking", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        if value is None or value in ("none", "null", ["none"]):
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _some(cls, value: _Names) -> _Names:
        if not value:
            raise ValueError("name at least one model")
        return value


_PLUGINS = {"attacks": ATTACKS, "datasets": DATASETS, "defenses": DEFENSES}
_OPTION_SECTIONS = (*_PLUGINS, "models", "judges")


@dataclass(frozen=True)
class Request:
    """A parsed command.

    Attributes:
        values: value of each dotted key that does not vary.
        axes: values of each dotted key that is swept, in the order typed.
        typed: for each dotted key, the argument that set it.
        overrides: all arguments, as typed.
        notes: what the user should know about how they were read.
    """

    values: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    typed: Mapping[str, str]
    overrides: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of points."""
        size = 1
        for values in self.axes.values():
            size *= len(values)
        return size

    def points(self) -> Iterator[Settings]:
        """The settings of each point of the sweep; the last axis typed varies fastest.

        Raises:
            ConfigError: a value has a wrong type or is not allowed.
        """
        for combination in itertools.product(*self.axes.values()):
            yield validate({**self.values, **dict(zip(self.axes, combination, strict=True))})


def read(arguments: Sequence[str]) -> Request:
    """Parse the arguments of a command and check every key.

    Raises:
        OverrideError: an argument is not in the grammar.
        UnknownNameError: a key or plug-in name does not exist; the message has the nearest ones.
        ConfigError: a key is given twice, or a value has a wrong type.
    """
    kept, notes = translate_hydra(arguments)
    values: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    typed: dict[str, str] = {}
    for override in map(parse, kept):
        for key, alternatives in _spread(override):
            if key in typed and override.operation != "~":
                raise ConfigError(f"{key} is given twice: {typed[key]!r} and {override.text!r}")
            values.pop(key, None)
            axes.pop(key, None)
            if override.operation == "~":
                typed.pop(key, None)
                continue
            typed[key] = override.text
            if len(alternatives) > 1:
                axes[key] = alternatives
            else:
                values[key] = alternatives[0]
    return Request(values, axes, typed, tuple(arguments), tuple(notes))


@dataclass(frozen=True)
class Judging:
    """What a `judge` command says."""

    out: str
    judge: tuple[str, ...]
    judges: Mapping[str, Mapping[str, Any]]


def read_judging(arguments: Sequence[str]) -> Judging:
    """Parse the arguments of a `judge` command: out, judge and options of judges.

    Raises:
        ConfigError: any other key, or no judge.
    """
    request = read(arguments)
    for key, text in request.typed.items():
        taken = ("out", "judge", "judges", "launcher", "store")
        if key.split(".")[0] not in taken or key in request.axes:
            raise ConfigError(
                f"{text!r}: judging takes out=, judge=, judges.NAME.OPTION= and launcher.*"
            )
    names = request.values.get("judge", ())
    names = (names,) if isinstance(names, str) else tuple(names or ())
    if not names:
        raise ConfigError("judge= is missing, as in adversariallm judge out=out judge=exact_match")
    for name in names:
        check_judge(name)
    out = str(request.values.get("out", Settings.model_fields["out"].default))
    return Judging(out, names, _judge_options(request))


def judge_settings(arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of judges by name, from `judges.NAME.OPTION=VALUE`.

    Raises:
        ConfigError: another key, or a wrong name.
    """
    request = read(arguments)
    for key, text in request.typed.items():
        if not key.startswith("judges.") or key in request.axes:
            raise ConfigError(f"{text!r}: expected judges.NAME.OPTION=VALUE")
    return _judge_options(request)


def _judge_options(request: Request) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for key, value in request.values.items():
        if key.startswith("judges."):
            _, name, option = key.split(".")
            options.setdefault(name, {})[option] = value
    return options


def _spread(override: Override) -> list[tuple[str, tuple[Any, ...]]]:
    """The checked keys of an override: a dict given to a section counts as its single keys."""
    key = canonical_key(override.key)
    if is_set(key):
        alternatives = override.values
        if override.sweep:
            alternatives = (list(override.values),)
        return [(key, alternatives)]
    if len(override.values) == 1 and isinstance(override.values[0], dict) and _is_section(key):
        spread = []
        for name, value in override.values[0].items():
            inner = Override(f"{key}.{name}", override.operation, (value,), False, override.text)
            spread += _spread(inner)
        return spread
    if _is_section(key) and override.operation != "~":
        raise ConfigError(f"{key} has parts; write {key}.NAME=VALUE, given: {override.text!r}")
    return [(key, override.values)]


def is_set(key: str) -> bool:
    """Whether several values of a key are one selection instead of alternatives."""
    return key in ("judge", "tracking") or (key.startswith("datasets.") and key.endswith(".idx"))


def _is_section(key: str) -> bool:
    """Whether a checked key stands for several keys."""
    head, *rest = key.split(".")
    if head in _PLUGINS and len(rest) == 2:
        option = plugin_config(head, rest[0]).model_fields[rest[1]]
        return nested_model(option.annotation) is not None
    if head in _OPTION_SECTIONS:
        return len(rest) < 2
    if head in ("generation_config", "helpers"):
        return not rest
    field = Settings.model_fields[head] if not rest else None
    return field is not None and nested_model(field.annotation) is not None


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """The configuration class that a field holds, None for other fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def canonical_key(key: str) -> str:
    """Check a dotted key and replace aliases of plug-in names by the names.

    Raises:
        UnknownNameError: with the nearest keys.
    """
    head, *rest = key.split(".")
    if head not in Settings.model_fields:
        raise UnknownKeyError(key, head, list(Settings.model_fields))
    if not rest:
        return key
    if head in _PLUGINS:
        name = _PLUGINS[head].resolve(rest[0])
        _check_fields(key, f"{head}.{name}", plugin_config(head, name), rest[1:])
        return ".".join([head, name, *rest[1:]])
    if head == "judges":
        check_judge(rest[0])
        valid = judge_options(rest[0])
        if rest[1:] and (len(rest) > 2 or rest[1] not in valid):
            raise UnknownKeyError(key, rest[-1], valid, prefix=f"judges.{rest[0]}.")
    elif head == "models":
        if len(rest) > 1:
            _check_fields(key, f"models.{'.'.join(rest[:-1])}", model_options(), rest[-1:])
    elif head == "generation_config":
        _check_fields(key, head, GenerationConfig, rest)
    elif head == "helpers":
        if rest[0] not in HELPER_ROLES or len(rest) > 1:
            raise UnknownKeyError(key, ".".join(rest), HELPER_ROLES, prefix="helpers.")
    else:
        annotation = nested_model(Settings.model_fields[head].annotation)
        _check_fields(key, head, annotation, rest)
    return key


def _check_fields(key: str, prefix: str, model: type[BaseModel] | None, rest: list[str]) -> None:
    """Follow `rest` through nested configurations."""
    for part in rest:
        if model is None:
            raise ConfigError(f"unknown key {key!r}: {prefix} is a value, it has no part {part!r}")
        if part not in model.model_fields:
            raise UnknownKeyError(key, part, list(model.model_fields), prefix=f"{prefix}.")
        model = nested_model(model.model_fields[part].annotation)
        prefix = f"{prefix}.{part}"


class UnknownKeyError(UnknownNameError):
    """A key that no setting has."""

    def __init__(self, key: str, part: str, valid: Sequence[str], prefix: str = "") -> None:
        """Build the message.

        Args:
            key: as typed.
            part: the component that does not exist.
            valid: what may stand in its place.
            prefix: the path before it, with its dot.
        """
        super().__init__("key", key, [f"{prefix}{name}" for name in valid])
        close = difflib.get_close_matches(part, valid, n=3, cutoff=0.5)
        where = prefix.rstrip(".") or "the configuration"
        hint = f" Did you mean {' or '.join(prefix + c for c in close)}?" if close else ""
        self.args = (f"unknown key {key!r}: {where} has no {part!r}.{hint} It has: "
                     f"{', '.join(valid) or 'no options'}",)  # fmt: skip


def plugin_config(section: str, name: str) -> type[FrozenConfig]:
    """The option class of an attack, dataset or defense."""
    config: type[FrozenConfig] = _PLUGINS[section].load(name).Config
    return config


def judge_options(name: str) -> list[str]:
    """The names of a judge's options."""
    from judgezoo.registry import judge_class

    return ["variant", "backend", *judge_class(name).Options.model_fields]


def model_options() -> type[BaseModel]:
    """The loading options of models."""
    from adversariallm.models.options import ModelOptions

    return ModelOptions


def check_judge(name: str) -> None:
    """Refuse a judge that does not exist.

    Raises:
        UnknownNameError: with the nearest names.
    """
    from judgezoo.errors import UnknownName
    from judgezoo.registry import judge_class, list_judges

    try:
        judge_class(name)
    except UnknownName:
        raise UnknownNameError("judge", name, list_judges()) from None


def validate(values: Mapping[str, Any]) -> Settings:
    """The settings that dotted keys stand for.

    Raises:
        ConfigError: each wrong value with its path, what was given and what is allowed.
    """
    nested: dict[str, Any] = {}
    for key, value in values.items():
        head, *rest = key.split(".")
        if head == "models" and len(rest) > 2:
            rest = [".".join(rest[:-1]), rest[-1]]
        place = nested
        for part in (head, *rest)[:-1]:
            place = place.setdefault(part, {})
        place[(head, *rest)[-1]] = value
    missing = [name for name in ("model", "dataset", "attack") if nested.get(name) is None]
    if missing:
        raise ConfigError(
            f"{missing[0]}= is missing; a run needs model=, dataset= and attack=, as in "
            "adversariallm run model=smollm2-135m dataset=starter_harmful attack=direct"
        )
    try:
        return Settings.model_validate(nested)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from None


def explain_invalid(error: ValidationError, prefix: str = "") -> str:
    """One line per wrong value: its path, what was given, what is allowed."""
    lines = []
    for problem in error.errors():
        path = ".".join([*filter(None, [prefix]), *map(str, problem["loc"])])
        lines.append(f"{path}={problem['input']!r}: {problem['msg']}")
    return "\n".join(lines)


def configure(section: str, name: str, options: Mapping[str, Any]) -> FrozenConfig:
    """The validated options of one plug-in.

    Raises:
        UnknownNameError: an unknown option, with the nearest ones.
        ConfigError: a wrong value, with its path.
    """
    config = plugin_config(section, name)
    for key in options:
        if key not in config.model_fields:
            prefix = f"{section}.{name}."
            raise UnknownKeyError(prefix + key, key, list(config.model_fields), prefix=prefix)
    try:
        return config(**options)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error, f"{section}.{name}")) from None
