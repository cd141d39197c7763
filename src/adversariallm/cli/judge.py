"""Score stored completions with more judges."""

from __future__ import annotations

from typing import Annotated

import typer

from adversariallm.cli._app import OVERRIDES

CONTEXT = OVERRIDES


def command(
    overrides: Annotated[
        list[str], typer.Argument(help="out=DIR judge=NAME,... judges.NAME.OPTION=VALUE")
    ],
    where: Annotated[
        list[str] | None, typer.Option(help="Judge runs with FACET=VALUE, e.g. attack=gcg.")
    ] = None,
    attacked: Annotated[
        bool, typer.Option("--attacked", help="Judges read the prompt that was sent.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Score the stored completions of out=DIR with judge=NAME; what is scored already stays."""
    from adversariallm.cli._console import Reporter, say
    from adversariallm.cli._stores import existing_store, facets
    from adversariallm.reporting.load import predicate
    from adversariallm.runs.campaign import judge_runs
    from adversariallm.runs.settings import read_judging
    from adversariallm.runs.worker import Workshop

    chosen = read_judging(overrides)
    store = existing_store(chosen.out)
    keep = predicate(facets(where))
    ids = [run_id for run_id in store.runs() if keep(store.header(run_id))]
    pairs = [(run_id, judge) for judge in chosen.judge for run_id in ids]
    with Reporter(quiet=quiet) as reporter:
        problems = judge_runs(
            store,
            pairs,
            Workshop(judges=chosen.judges),
            reporter,
            view="attacked" if attacked else "clean",
        )
    if not quiet:
        say(f"{len(ids)} runs judged by {', '.join(chosen.judge)}, {len(problems)} problems")
    raise typer.Exit(int(bool(problems)))
