"""Go on with a store: repeat the commands that wrote to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from adversariallm.runs.campaign import Command


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    everything: Annotated[
        bool, typer.Option("--all", help="Repeat every command, oldest first.")
    ] = False,
    retry: Annotated[bool, typer.Option(help="Try failed runs again.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Repeat the last command that wrote to a store; finished work is skipped."""
    from adversariallm.cli._console import Reporter, say
    from adversariallm.cli.run import show_results
    from adversariallm.runs.campaign import remembered
    from adversariallm.runs.passes import repeat

    code = 0
    commands = remembered(store)
    for command in commands if everything else commands[-1:]:
        kept = with_setting(list(command.arguments), "out", str(store))
        if retry and command.verb != "judge":
            kept = with_setting(kept, "retry", "true")
        again = replace(command, arguments=tuple(kept))
        if not quiet:
            _announce(again)
        with Reporter(quiet=quiet) as reporter:
            finished = repeat(again, watcher=reporter)
        if not quiet:
            show_results(store, finished.run_ids)
        code = max(code, finished.exit_code)
    states = finished.store.survey().values() if commands[-1].verb == "judge" else ()
    left = sum(state in ("expired", "released") for state in states)  # plans tell it themselves
    if left and not everything and not quiet:
        say(f"{left} runs of earlier commands are unfinished: adversariallm resume {store} --all")
    raise typer.Exit(code)


def _announce(command: Command) -> None:
    import shlex

    from adversariallm.cli._console import say

    verb = ["run"] if command.verb == "run" else []
    say(f"adversariallm {shlex.join([*verb, *command.words])}")


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
