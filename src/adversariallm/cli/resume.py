"""Go on with a store: repeat the commands that wrote to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    everything: Annotated[
        bool, typer.Option("--all", help="Repeat every command, not only the last.")
    ] = False,
    retry: Annotated[bool, typer.Option(help="Try failed runs again.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Repeat the last `run` command that wrote to a store; finished work is skipped."""
    import shlex

    from adversariallm.cli._console import Reporter, say
    from adversariallm.cli.run import show_results
    from adversariallm.runs.campaign import remembered, run

    code = 0
    commands = remembered(store)
    for arguments in commands if everything else commands[-1:]:
        kept = with_setting(arguments, "out", str(store))
        if retry:
            kept = with_setting(kept, "retry", "true")
        if not quiet:
            say(f"adversariallm run {shlex.join(kept)}")
        with Reporter(quiet=quiet) as reporter:
            finished = run(*kept, watcher=reporter)
        if not quiet:
            show_results(store, finished.run_ids)
        code = max(code, finished.exit_code)
    raise typer.Exit(code)


def with_setting(arguments: list[str], key: str, value: str) -> list[str]:
    """The arguments with one setting added or replaced in its place; equal ones stay untouched."""
    from adversariallm.runs.overrides import OverrideError, parse

    try:
        plain = parse(f"{key}={value}").values == (value,) or value == "true"
    except OverrideError:
        plain = False
    text = f"{key}={value}" if plain else f"{key}={json.dumps(value)}"
    replaced = [text if a.partition("=")[0] == key else a for a in arguments]
    return replaced if text in replaced else [*replaced, text]
