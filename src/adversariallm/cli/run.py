"""Plan, run and judge what the overrides ask for."""

from __future__ import annotations

from typing import Annotated

import typer

from adversariallm.cli._app import OVERRIDES

CONTEXT = OVERRIDES


def command(
    overrides: Annotated[list[str], typer.Argument(help="key=value, commas sweep")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Run attacks: model=... dataset=... attack=... and any other key=value.

    What the store has already is skipped, so the same command goes on where it was stopped.
    """
    from adversariallm.cli._console import Reporter
    from adversariallm.runs.campaign import run

    with Reporter(quiet=quiet) as reporter:
        finished = run(*overrides, watcher=reporter)
    if not quiet:
        show_results(finished.store.root, finished.run_ids)
    if finished.failed and not quiet:
        print(f"{len(finished.failed)} runs failed; the others are kept. Repeat with retry=true.")
    raise typer.Exit(finished.exit_code)


def show_results(root: object, run_ids: tuple[str, ...]) -> None:
    """The summary table of some stored runs and where to look further."""
    from adversariallm.cli._console import console, say
    from adversariallm.reporting import read_documents, summarize

    if run_ids:
        documents = read_documents(str(root), {"run_id": list(run_ids)})
        console().print(summarize(documents).to_rich())
    say(f"results: {root}    report: adversariallm report {root}")
