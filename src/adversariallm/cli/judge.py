"""Score stored completions with more judges."""

from __future__ import annotations

from typing import Annotated

import typer

from adversariallm.cli._app import OVERRIDES
from adversariallm.cli._passes import Ids, Where

CONTEXT = OVERRIDES


def command(
    overrides: Annotated[
        list[str], typer.Argument(help="out=DIR judge=NAME,... judges.NAME.OPTION=VALUE launcher.*")
    ],
    ids: Ids = None,
    where: Where = None,
    attacked: Annotated[
        bool, typer.Option("--attacked", help="Judges read the prompt that was sent.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Score the stored completions of out=DIR with judge=NAME; what is scored already stays."""
    from adversariallm.cli._console import Reporter, say
    from adversariallm.cli._stores import existing_store
    from adversariallm.runs.passes import choose, judge
    from adversariallm.runs.settings import read_judging

    chosen = read_judging(overrides)
    store = existing_store(chosen.out)
    count = len(choose(store, ids, where, derived=True))
    with Reporter(quiet=quiet) as reporter:
        finished = judge(
            *overrides,
            runs=ids,
            where=where,
            view="attacked" if attacked else "clean",
            watcher=reporter,
        )
    if not quiet:
        names = ", ".join(chosen.judge)
        say(f"{count} runs judged by {names}, {len(finished.problems)} problems")
    raise typer.Exit(finished.exit_code)
