"""Show what `run` would do, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adversariallm.cli._app import OVERRIDES

if TYPE_CHECKING:
    from adversariallm.runs.plan import Plan
    from adversariallm.runs.store import Store

CONTEXT = OVERRIDES


def command(
    overrides: Annotated[list[str], typer.Argument(help="the overrides of `run`")],
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="KEY", help="Tell where KEY's value is from.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    limit: Annotated[int, typer.Option(help="How many runs to list.")] = 20,
) -> None:
    """List the runs that the overrides ask for, and what is skipped and why."""
    from adversariallm.cli._console import say, say_json
    from adversariallm.runs.campaign import prepare, preview
    from adversariallm.runs.lookups import open_store
    from adversariallm.runs.origins import origins

    if explain is not None:
        for origin in origins(prepare(overrides)[0], explain):
            say(str(origin))
        return
    found = preview(*overrides)
    if as_json:
        say_json(
            {
                "todo": [{"run_id": r.run_id, "label": r.task.spec.label} for r in found.todo],
                "skipped": [{"label": s.label, "reason": s.reason} for s in found.skipped],
                "notes": list(found.notes),
            }
        )
        return
    show_plan(found, limit)
    say_unfinished(open_store(prepare(overrides)[1]), found)


def say_unfinished(store: Store, found: Plan) -> None:
    """Which runs were begun by other commands and stay unfinished."""
    from adversariallm.cli._console import say
    from adversariallm.runs.nearest import left_unfinished

    stopped = left_unfinished(store, [r.task.spec for r in (*found.todo, *found.done)])
    if stopped:
        say(f"note: {stopped}")


def show_plan(found: Plan, limit: int = 20) -> None:
    """What is to be done, and what is skipped and why."""
    from adversariallm.cli._console import say, say_skipped

    for note in found.notes:
        say(f"note: {note}")
    for planned in found.todo[:limit]:
        say(f"{planned.run_id}  {planned.task.spec.label}")
    if len(found.todo) > limit:
        say(f"... and {len(found.todo) - limit} more")
    say_skipped([(s.label, s.reason) for s in found.skipped])
    models = len(found.groups())
    say(f"{len(found.todo)} runs to do in {models} group(s), {len(found.skipped)} skipped")
