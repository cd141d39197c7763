"""Named options of attacks, from `presets/<attack>.yaml` beside the attack's file.

A preset only sets options that the attack's `Config` declares; defaults stand in `Config` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError
from adversariallm.core.plugins import ATTACKS


class Preset(FrozenConfig):
    """One named set of options.

    Attributes:
        source: where the values are published.
        options: options of the attack.
        generation_config: decoding options, where the user sets none.
    """

    source: str
    options: dict[str, Any] = Field({})
    generation_config: dict[str, Any] = Field({})


def preset_file(attack: str) -> Path:
    """Where the presets of an attack stand, whether or not there are any."""
    module = ATTACKS.load(attack)
    return Path(str(module.__file__)).parent / "presets" / f"{module.INFO.name}.yaml"


def presets(attack: str) -> dict[str, Preset]:
    """The presets of an attack by name.

    Raises:
        ConfigError: the file holds something else.
    """
    path = preset_file(attack)
    if not path.is_file():
        return {}
    rows = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    try:
        return {str(name): Preset.model_validate(row) for name, row in rows.items()}
    except (ValidationError, AttributeError) as error:
        raise ConfigError(f"{path} is not a preset file: {error}") from None


def preset(attack: str, name: str | None) -> Preset | None:
    """The preset of that name, None where this attack has none of that name."""
    return presets(attack).get(name) if name is not None else None


def with_typed(options: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a preset under those that a user typed, also inside options with parts."""
    out = {**options, **typed}
    for name in options.keys() & typed.keys():
        if isinstance(options[name], Mapping) and isinstance(typed[name], Mapping):
            out[name] = with_typed(options[name], typed[name])
    return out
