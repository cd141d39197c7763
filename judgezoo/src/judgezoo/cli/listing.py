"""``judgezoo list``: the judges and what is known about each."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from judgezoo.base import JudgeInfo
from judgezoo.cli._common import write_table
from judgezoo.errors import UnknownName
from judgezoo.registry import list_judges

__all__ = ["list_command"]


def list_command(
    name: Annotated[str | None, typer.Argument(help="show everything about one judge")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the judges: type, published model, output keys, license of the prompt."""
    judges = list_judges()
    if name is not None:
        if name not in judges:
            raise UnknownName("judge", name, judges)
        judges = {name: judges[name]}
    if as_json:
        typer.echo(json.dumps({key: asdict(info) for key, info in judges.items()}, indent=1))
    elif name is not None:
        _print_one(judges[name])
    else:
        write_table(
            [
                (
                    info.name,
                    info.kind,
                    info.semantics,
                    info.baseline[0] if info.baseline else "-",
                    ",".join(("p_harmful", *info.keys)),
                    info.license,
                )
                for info in judges.values()
            ],
            ("judge", "type", "measures", "published model", "keys", "license"),
        )


def _print_one(info: JudgeInfo) -> None:
    for field, value in asdict(info).items():
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        typer.echo(f"{field:16}{text}")
