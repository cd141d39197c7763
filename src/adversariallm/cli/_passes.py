"""What the commands for later passes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from adversariallm.runs.campaign import Finished

Overrides = Annotated[list[str], typer.Argument(help="out=DIR and other key=value")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", help="A stored run, or its first letters; repeatable.")
]
Where = Annotated[
    list[str] | None, typer.Option(help="Stored runs by a filter, e.g. attack=gcg,seed>=2.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")]


def carry_out(
    work: Callable[..., Finished],
    overrides: list[str],
    ids: list[str] | None,
    where: list[str] | None,
    quiet: bool,
) -> None:
    """Run a pass with progress, then print the summary of the runs it is about."""
    from adversariallm.cli._console import Reporter
    from adversariallm.cli.run import show_results

    with Reporter(quiet=quiet) as reporter:
        finished = work(*overrides, runs=ids or (), where=where or (), watcher=reporter)
    if not quiet:
        show_results(finished.store.root, finished.run_ids)
    if finished.failed and not quiet:
        print(f"{len(finished.failed)} runs failed; the others are kept. Repeat with retry=true.")
    raise typer.Exit(finished.exit_code)
