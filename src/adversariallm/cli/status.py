"""Tell how far the runs of a store are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer


def command(
    store: Annotated[Path, typer.Argument(help="the folder given as out=")] = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read every stored file whole.")] = False,
) -> None:
    """Count the runs of a store by state, with failures and damaged runs; 1 where there are any."""
    from adversariallm.cli._console import say, say_json
    from adversariallm.cli._stores import existing_store
    from adversariallm.runs.document import header_is_verified
    from adversariallm.runs.index import Index
    from adversariallm.runs.launch.progress import overview

    found = existing_store(store)
    states = Counter(found.survey().values())
    failed = found.failed()
    damaged = found.damaged() if check else Index(found).problems()
    whole = [run_id for run_id in found.runs() if run_id not in damaged] if check else []
    unverified = [r for r in whole if not header_is_verified(found.header(r))]
    batches = overview(found)
    if as_json:
        say_json(
            {
                "states": dict(states),
                "failed": {f.key: f.error for f in failed},
                "damaged": damaged,
                **({"unverified_headers": unverified} if check else {}),
                "batches": {batch.name: dict(batch.states) for batch in batches},
            }
        )
    else:
        for state, count in sorted(states.items()):
            say(f"{count:6d} {state}: {_MEANING.get(state, '')}")
        for batch in batches:
            parts = ", ".join(f"{count} {state}" for state, count in sorted(batch.states.items()))
            say(f"batch {batch.name}: {parts} (logs: {batch.folder})")
        for failure in failed:
            say(f"failed {failure.key}: {failure.error} (details: {failure.path})")
        for run_id, problem in damaged.items():
            say(f"damaged {run_id}: {problem}")
        if unverified:
            say(
                f"{len(unverified)} runs were published by an older release: no hash covers their "
                "headers (settings, status); costs of those made here were held against their steps"
            )
    raise typer.Exit(int(bool(failed or damaged)))


_MEANING = {
    "done": "published",
    "held": "a process works on it",
    "expired": "its process is gone; repeat its command, or all: adversariallm resume DIR --all",
    "released": "given back unfinished; repeat its command, or all: adversariallm resume DIR --all",
    "failed": "ended with an error; repeat the command with retry=true",
    "new": "never started",
}
