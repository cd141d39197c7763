"""Rows about everything that can be named, for `list` and `explain`; loads no model and no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from adversariallm.core.errors import UnknownNameError
from adversariallm.core.plugins import ATTACKS, DATASETS, DEFENSES, Registry
from adversariallm.core.protocols import Needs

Row = dict[str, Any]


def plain(value: Any) -> Any:
    """A fact as JSON values."""
    if isinstance(value, Needs):
        return [str(n.name).lower() for n in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def _info(info: Any) -> Row:
    return {f.name: plain(getattr(info, f.name)) for f in fields(info)}


def _plugins(registry: Registry) -> list[Row]:
    rows = []
    origins = registry.origins()
    broken = registry.broken()
    for name, origin in origins.items():
        if name in broken:
            rows.append({"name": name, "summary": broken[name]})
        else:
            rows.append({**_info(registry.load(name).INFO), "origin": origin})
    return rows


def models() -> list[Row]:
    """One row per catalog model."""
    from adversariallm.models.card import catalog
    from adversariallm.models.sources import find_local

    rows = []
    for card in catalog().values():
        here = find_local(card)
        rows.append(
            {
                **card.model_dump(mode="json"),
                "pin": card.pin,
                "on_this_machine": None if here is None else str(here),
            }
        )
    return rows


def judges() -> list[Row]:
    """One row per judge."""
    from judgezoo.registry import list_judges

    return [_info(info) for info in list_judges().values()]


def templates() -> list[Row]:
    """One row per chat template of ours."""
    from adversariallm.tokenization.formats import list_templates

    return [info.model_dump(mode="json") for info in list_templates()]


KINDS: dict[str, Callable[[], list[Row]]] = {
    "attacks": lambda: _plugins(ATTACKS),
    "datasets": lambda: _plugins(DATASETS),
    "defenses": lambda: _plugins(DEFENSES),
    "judges": judges,
    "models": models,
    "templates": templates,
}


def rows(kind: str) -> list[Row]:
    """The rows of one kind; a singular is understood.

    Raises:
        UnknownNameError: no such kind.
    """
    for name in (kind, f"{kind}s"):
        if name in KINDS:
            return KINDS[name]()
    raise UnknownNameError("kind", kind, KINDS)
