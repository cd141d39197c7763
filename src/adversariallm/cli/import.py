"""Read answers that other tools made into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[
        Path,
        typer.Argument(help="A file; also a folder of jailbreakbench, harmbench or table6 files."),
    ],
    form: Annotated[
        str, typer.Option("--from", help="jailbreakbench, harmbench, table6, csv, jsonl")
    ],
    store: Annotated[Path, typer.Option("--out", "--store", help="the store to add to")] = Path(
        "out"
    ),
    model: Annotated[
        str, typer.Option(help="Who answered, where the file does not say.")
    ] = "unknown",
    attack: Annotated[
        str, typer.Option(help="The attack, where the file does not say.")
    ] = "unknown",
    behaviors: Annotated[
        Path | None, typer.Option(help="harmbench: the behaviors CSV with goals and contexts.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="csv, jsonl: FIELD=COLUMN, e.g. prompt=question.")
    ] = None,
) -> None:
    """Import old results, so that they can be judged, reported and exported."""
    from adversariallm.cli._console import say
    from adversariallm.cli._stores import writing
    from adversariallm.core.errors import ConfigError
    from adversariallm.reporting.formats import reader
    from adversariallm.reporting.imports import publish
    from adversariallm.runs.store import Store

    columns = {}
    for text in column or ():
        field, equals, name = text.partition("=")
        if not equals:
            raise ConfigError(f"--column {text!r}: expected FIELD=COLUMN, as in prompt=question")
        columns[field] = name
    documents = reader(form)(
        source, model=model, attack=attack, behaviors=behaviors, columns=columns
    )
    with writing(store):
        added, known = publish(Store(store), documents)
    say(f"{len(added)} runs added to {store}, {len(known)} were there already")
    say(f"next: adversariallm judge out={store} judge=NAME")
