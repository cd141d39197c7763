"""What the commands for later passes share."""

from __future__ import annotations

from typing import Annotated

import typer

Overrides = Annotated[list[str], typer.Argument(help="out=DIR and other key=value")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", help="A stored run, or its first letters; repeatable.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        help="Only stored runs that fit, e.g. attack=gcg,seed>=2: a comma means and (as does a "
        "second --where); attack=[gcg,beast] is any of them; also != < <= > >= ~ (contains)."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")]


def carry_out(
    verb: str,
    overrides: list[str],
    ids: list[str] | None,
    where: list[str] | None,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run a pass with progress, then print the summary of the runs it is about."""
    from adversariallm.cli._console import Reporter
    from adversariallm.cli.plan import show_plan
    from adversariallm.cli.run import show_results
    from adversariallm.runs import passes
    from adversariallm.runs.campaign import Command

    if dry_run:
        show_plan(passes.preview(verb, *overrides, runs=ids, where=where))
        return
    with Reporter(quiet=quiet) as reporter:
        command = Command(verb, tuple(overrides), tuple(ids or ()), tuple(where or ()))
        finished = passes.repeat(command, watcher=reporter)
    if not quiet:
        show_results(finished.store.root, finished.run_ids)
    if finished.failed and not quiet:
        print(f"{len(finished.failed)} runs failed; the others are kept. Repeat with retry=true.")
    raise typer.Exit(finished.exit_code)
