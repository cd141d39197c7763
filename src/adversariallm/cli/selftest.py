"""Try whether a file system keeps the promises that the run store rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    store: Annotated[Path, typer.Option(help="folder on the file system to try")],
    kills: Annotated[int, typer.Option(help="how many processes to kill")] = 20,
) -> None:
    """Try a file system: claims, atomic publishing, killed processes; 1 where a promise broke."""
    from adversariallm.cli._console import say
    from adversariallm.runs.selftest import selftest

    checks = selftest(store, kills)
    for check in checks:
        say(f"{'ok     ' if check.passed else 'BROKEN '} {check.name}: {check.detail}")
    raise typer.Exit(int(not all(c.passed for c in checks)))
