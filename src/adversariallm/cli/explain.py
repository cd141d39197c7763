"""Explain a plug-in: what it is, what it needs, every option with type, default and meaning."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def command(
    name: Annotated[str, typer.Argument(help="attack, dataset, defense, judge, model, template")],
) -> None:
    """Explain an attack, dataset, defense, judge, model or chat template by its name."""
    from adversariallm.cli._catalog import KINDS
    from adversariallm.cli._console import say
    from adversariallm.core.errors import UnknownNameError
    from adversariallm.core.plugins import DATASETS

    name = DATASETS.aliases.get(name, name)
    known: list[str] = []
    found = False
    for kind, rows in KINDS.items():
        for row in rows():
            known.append(row["name"])
            if row["name"] == name:
                if found:
                    say()
                found = True
                _explain(kind.removesuffix("s"), row)
    if not found:
        raise UnknownNameError("name", name, known)


def _explain(kind: str, row: dict[str, Any]) -> None:
    from adversariallm.cli._console import say

    say(f"{row['name']} ({kind}): {row['summary']}")
    for key, value in row.items():
        if key in ("name", "summary") or value in (None, [], {}, "", ()):
            continue
        if isinstance(value, list) and key in ("deviations", "notes"):
            say(f"  {key}:")
            for line in value:
                say(f"    - {line}")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            say(f"  {key.replace('_', ' ')}: {shown}")
    options = _options(kind, row["name"])
    say("  options:" if options else "  options: none")
    for line in options:
        say(f"    {line}")
    if kind == "defense":
        say(f"  by default needs: {_needs(row['name'])}")
    if kind == "attack":
        from adversariallm.runs.presets import presets

        for line in _choices_with_assets(row["name"]):
            say(f"  {line}")

        for preset, values in presets(row["name"]).items():
            say(f"  preset {preset} ({values.source}): {json.dumps(values.options)}")


def _needs(name: str) -> str:
    """What a defense with its default options needs."""
    from adversariallm.core.plugins import DEFENSES

    module = DEFENSES.load(name)
    wanted = module.INFO.supplies(module.Config())
    needs = [str(n.name).lower() for n in wanted.model | wanted.inside]
    parts = [f"{', '.join(needs)} of the model"]
    parts += [f"helpers.{role}=MODEL ({what})" for role, what in wanted.helpers.items()]
    parts += [f"judge {judge}" for judge in wanted.judges]
    parts += [f"data set {data}" for data in wanted.datasets]
    parts += [f"text {asset}" for asset in wanted.assets]
    return "; ".join(parts)


def _choices_with_assets(name: str) -> list[str]:
    """A line for every choice of an option that decides which texts by others are needed."""
    from adversariallm.core.plugins import ATTACKS
    from adversariallm.runs.settings import plugin_config

    info, config = ATTACKS.load(name).INFO, plugin_config("attacks", name)
    lines: list[str] = []
    if not hasattr(config, "needs_assets"):
        return lines
    for field, facts in config.model_fields.items():
        choices = [c for c in getattr(facts.annotation, "__args__", ()) if isinstance(c, str)]
        assets = {c: info.assets_of(config(**{field: c})) for c in choices}
        if len(set(assets.values())) > 1:
            lines += [
                f"with {field}={c}: assets {', '.join(a) or 'none'}" for c, a in assets.items()
            ]
    return lines


def _options(kind: str, name: str) -> list[str]:
    """One line per option: key, type, default, meaning, and where it is declared."""
    from adversariallm.runs.settings import model_options, plugin_config

    model: Any
    if kind == "template":
        return []
    if kind == "model":
        model = model_options()
    elif kind == "judge":
        from judgezoo.registry import judge_class

        model = judge_class(name).Options
    else:
        model = plugin_config(f"{kind}s", name)
    return _fields(f"{kind}s.{name}", model)


def _fields(prefix: str, model: Any) -> list[str]:
    """The lines of the options below a key; an option with parts gives theirs."""
    from adversariallm.runs.origins import declared_at
    from adversariallm.runs.settings import nested_model

    lines = []
    for field, facts in model.model_fields.items():
        if (inner := nested_model(facts.annotation)) is not None:
            lines += _fields(f"{prefix}.{field}", inner)
            continue
        default = facts.get_default(call_default_factory=True)
        meaning = f"  {facts.description}" if facts.description else ""
        limits = ", ".join(map(str, facts.metadata))
        limits = f" [{limits}]" if limits else ""
        kind_of = _type(facts.annotation)
        where = declared_at(model, field)
        lines.append(f"{prefix}.{field}: {kind_of}{limits} = {default!r}{meaning}  ({where})")
    return lines


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("NoneType", "None")
