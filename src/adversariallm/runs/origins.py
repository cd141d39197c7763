"""Tells where the value of a setting comes from: an argument, a preset, an attack or a default.

It repeats the order of precedence of `runs.plan` in words and decides nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.runs.presets import preset_file, presets
from adversariallm.runs.settings import (
    Request,
    Settings,
    canonical_key,
    model_options,
    nested_model,
    plugin_config,
)

if TYPE_CHECKING:
    from adversariallm.evaluation.protocols import Protocol


@dataclass(frozen=True)
class Origin:
    """The value of one key and where it is from; `attack` where it holds for one attack only."""

    key: str
    value: Any
    source: str
    attack: str | None = None

    def __str__(self) -> str:
        """One line for the terminal."""
        only = f" (attack {self.attack})" if self.attack else ""
        return f"{self.key} = {self.value!r}{only}: {self.source}"


def origins(request: Request, key: str) -> list[Origin]:
    """Where the value of `key`, or of every key below it, comes from.

    Raises:
        UnknownNameError: there is no such key.
    """
    found: dict[tuple[str, str | None, str], Origin] = {}
    for leaf in _leaves(canonical_key(key)):
        for origin in _origins(request, leaf):
            found.setdefault((origin.key, origin.attack, repr(origin.value)), origin)
    return list(found.values())


def _leaves(key: str) -> list[str]:
    """The keys that have values at or below `key`."""
    model = section_model(key)
    if model is None:
        return [key]
    return [leaf for name in model.model_fields for leaf in _leaves(f"{key}.{name}")]


def section_model(key: str) -> type[BaseModel] | None:
    """The configuration whose fields stand below a key; None for a key that has a value."""
    head, *rest = key.split(".")
    model: type[BaseModel] | None
    if head in ("attacks", "datasets", "defenses") and rest:
        model, rest = plugin_config(head, rest[0]), rest[1:]
    elif head == "models" and len(rest) > 1 and rest[-1] in model_options().model_fields:
        return None
    elif head == "models" and rest:
        return model_options()
    elif head == "generation_config":
        model = GenerationConfig
    else:
        model, rest = Settings, [head, *rest]
    for part in rest:
        field = model.model_fields.get(part) if model is not None else None
        model = nested_model(field.annotation) if field is not None else None
    return model


def _origins(request: Request, key: str) -> Iterator[Origin]:
    if key in request.typed:
        values = request.axes.get(key) or (request.values[key],)
        for value in values:
            yield Origin(key, value, f"the argument {request.typed[key]!r}")
        return
    if key.startswith("attacks."):
        yield _of_attack(request, key)
    elif key.startswith("generation_config."):
        for attack in _attacks(request):
            yield _of_generation(request, key, attack)
    elif key == "judge" and (fixed := _protocol(request)) is not None:
        yield Origin(key, (fixed.judge,), f"protocol {fixed.name!r}")
    else:
        yield _default(key)


def _of_attack(request: Request, key: str) -> Origin:
    _, attack, *rest = key.split(".")
    name = request.values.get("preset")
    found = presets(attack).get(str(name)) if name is not None else None
    value: Any = found.options if found is not None else {}
    for part in rest:
        if not isinstance(value, Mapping) or part not in value:
            return _default(key)
        value = value[part]
    return Origin(key, value, _preset_source(attack, str(name)))


def _of_generation(request: Request, key: str, attack: str) -> Origin:
    field = key.split(".")[1]
    fixed = _protocol(request)
    if fixed is not None and field in fixed.generation:
        return Origin(key, fixed.generation[field], f"protocol {fixed.name!r}")
    name = request.values.get("preset")
    found = presets(attack).get(str(name)) if name is not None else None
    if found is not None and field in found.generation_config:
        value = found.generation_config[field]
        return Origin(key, value, _preset_source(attack, str(name)), attack)
    module = ATTACKS.load(attack)
    if field in module.INFO.generation:
        source = f"prescribed by the attack, {module.__file__} (INFO.generation)"
        return Origin(key, module.INFO.generation[field], source, attack)
    return _default(key)


def _protocol(request: Request) -> Protocol | None:
    """The protocol of the command, where it has exactly one."""
    from adversariallm.evaluation.protocols import protocol_of

    name = request.values.get("protocol")
    return None if name is None else protocol_of(str(name))


def _preset_source(attack: str, name: str) -> str:
    return f"preset {name!r} in {preset_file(attack)}"


def _attacks(request: Request) -> list[str]:
    names = request.axes.get("attack") or (request.values.get("attack", "all"),)
    return ATTACKS.names() if "all" in names else [ATTACKS.resolve(str(n)) for n in names]


def _default(key: str) -> Origin:
    parent, _, name = key.rpartition(".")
    model = section_model(parent) if parent else Settings
    if model is None or name not in model.model_fields:
        return Origin(key, None, "not set")
    value = model.model_fields[name].get_default(call_default_factory=True)
    return Origin(key, value, f"default, {declared_at(model, name)}")


def declared_at(model: type[BaseModel], name: str) -> str:
    """File and line where a field of a configuration is declared."""
    for cls in model.__mro__:
        if name in cls.__dict__.get("__annotations__", {}):
            lines, first = inspect.getsourcelines(cls)
            at = next((i for i, s in enumerate(lines) if s.strip().startswith(f"{name}:")), 0)
            return f"{inspect.getsourcefile(cls)}:{first + at}"
    return model.__name__
