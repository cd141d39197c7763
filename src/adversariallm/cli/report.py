"""Write the HTML report of a store and print the summary table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file; STORE/report.html by default.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Keep runs with FACET=VALUE, e.g. attack=gcg.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the summary as CSV.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Score that counts as success, for all judges.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path.")] = False,
) -> None:
    """Summarize stored runs: a table here, and an HTML file with curves and transcripts."""
    from adversariallm.cli._console import console, say
    from adversariallm.cli._stores import facets
    from adversariallm.core.errors import DataError
    from adversariallm.reporting import read_documents, summarize, write_csv, write_report

    documents = read_documents(store, facets(where))
    if not documents:
        limits = f" with {' and '.join(where)}" if where else ""
        raise DataError(f"{store} has no published run{limits}")
    table = summarize(documents, threshold=threshold)
    path = write_report(documents, output or store / "report.html", threshold=threshold)
    if csv is not None:
        write_csv(table, csv)
    if not quiet:
        console().print(table.to_rich())
    say(f"report: {path}")
