"""What a `run` command needs from elsewhere: texts, data files and models.

Fetched into one folder, it lets a machine without internet carry the command out. It looks names up
and fetches; nothing is loaded or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adversariallm.core.plugins import ATTACKS, DATASETS, DEFENSES
from adversariallm.core.protocols import Wanted
from adversariallm.runs.judge_model import PREFIX
from adversariallm.runs.presets import preset
from adversariallm.runs.settings import Settings, configure, read


@dataclass(frozen=True)
class Needed:
    """Asset ids, and the options of each model by name."""

    assets: tuple[str, ...]
    models: Mapping[str, Mapping[str, Any]]


def needed(*arguments: str) -> Needed:
    """All that any point of a command needs.

    Raises:
        ConfigError: a name or value is wrong.
    """
    assets: dict[str, None] = {}
    models: dict[str, Mapping[str, Any]] = {}
    for settings in read(arguments).points():
        assets |= dict.fromkeys(_assets(settings))
        for name in _models(settings):
            models[name] = settings.models.get(name, {})
    return Needed(tuple(assets), models)


def _assets(settings: Settings) -> list[str]:
    from judgezoo.registry import judge_class

    dataset = DATASETS.load(settings.dataset).INFO
    found = list(dataset.assets)
    for name in ATTACKS.names() if settings.attack == "all" else [settings.attack]:
        name = ATTACKS.resolve(name)
        chosen = preset(name, settings.preset)
        options = {**(chosen.options if chosen else {}), **settings.attacks.get(name, {})}
        found += ATTACKS.load(name).INFO.assets_of(configure("attacks", name, options))
    shields = [_wanted(settings, name) for name in settings.defense]
    for wanted in shields:
        found += wanted.assets
        found += [a for name in wanted.datasets for a in DATASETS.load(name).INFO.assets]
    for name in [*_judges(settings), *(n for wanted in shields for n in wanted.judges)]:
        found += judge_class(name).info.assets
    return found


def _wanted(settings: Settings, defense: str) -> Wanted:
    name = DEFENSES.resolve(defense)
    config = configure("defenses", name, settings.defenses.get(name, {}))
    wanted: Wanted = DEFENSES.load(name).INFO.supplies(config)
    return wanted


def _judges(settings: Settings) -> list[str]:
    names = list(settings.judge)
    if names == ["auto"]:
        info = DATASETS.load(settings.dataset).INFO
        names = [info.judge] if info.judge else []  # the judges by purpose are rules
    return [n for n in (*names, settings.stopping.judge, settings.reward) if n]


def _models(settings: Settings) -> list[str]:
    backends = [str(o.get("backend") or "") for o in settings.judges.values()]
    judging = [b.removeprefix(PREFIX) for b in backends if b.startswith(PREFIX)]
    return [*settings.model, *settings.helpers.values(), *judging]


def fetch(what: Needed, say: Callable[[str], None]) -> int:
    """Bring everything into the caches; the number of things that could not be had."""
    from adversariallm.core.errors import AdversariaLLMError
    from adversariallm.models.card import EndpointCard
    from adversariallm.models.options import ModelOptions, resolve
    from adversariallm.models.sources import fetch as fetch_model
    from adversariallm.runs.lookups import asset_store
    from judgezoo.errors import JudgezooError

    store = asset_store()
    failed = 0
    for asset in what.assets:
        try:
            say(f"{asset}: {store.fetch(asset).sha256[:12]}")
        except JudgezooError as error:
            failed += 1
            say(f"{asset}: {error}")
    for name, options in what.models.items():
        try:
            card = resolve(name, ModelOptions(**options))
            where = "an endpoint" if isinstance(card, EndpointCard) else str(fetch_model(card))
            say(f"model {name}: {where}")
        except AdversariaLLMError as error:
            failed += 1
            say(f"model {name}: {error}")
    return failed
