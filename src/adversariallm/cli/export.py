"""Write stored runs as files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    to: Annotated[
        str,
        typer.Option(
            help="inspect, inspect-json, jailbreakbench, harmbench, table6, csv, parquet, bundle"
        ),
    ] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; STORE/export-FORMAT by default.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Keep runs with FACET=VALUE, e.g. attack=gcg.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Judge whose verdicts count, where the format has one.")
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(help="Hide harmful text: answers, or all (also the attacks' inputs)."),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="inspect: one epoch per step instead of per sample.")
    ] = False,
) -> None:
    """Export runs for inspect, JailbreakBench, HarmBench, the paper's tools, or as tables."""
    from adversariallm.cli._console import say
    from adversariallm.cli._stores import existing_store, facets
    from adversariallm.core.errors import ConfigError, DataError
    from adversariallm.reporting.formats import writer
    from adversariallm.reporting.load import read_documents
    from adversariallm.reporting.redact import redacted

    folder = output or store / f"export-{to}"
    if to == "bundle":
        from adversariallm.reporting.bundle import write_bundle

        say(f"bundle: {write_bundle(existing_store(store), folder, where=facets(where))}")
        return
    write = writer(to)
    existing_store(store)
    documents = read_documents(store, facets(where))
    if not documents:
        raise DataError(f"{store} has no published run to export")
    if redact is not None:
        if redact not in ("answers", "all"):
            raise ConfigError(f"--redact {redact!r}: expected answers or all")
        documents = redacted(documents, redact)  # type: ignore[arg-type]
    options = {"steps": steps} if to.startswith("inspect") else {}
    for path in write(documents, folder, form=to, judge=judge, **options):
        say(str(path))
