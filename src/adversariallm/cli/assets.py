"""Texts and data of others: fetch, list, verify."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)
Ids = Annotated[list[str] | None, typer.Argument(help="asset ids; all without any")]


@app.command("list")
def list_assets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every asset and whether it is here."""
    from adversariallm.cli._console import columns, say_json
    from adversariallm.runs.lookups import asset_store

    found = asset_store().list()
    if as_json:
        say_json([{**s.row.model_dump(mode="json"), "state": s.state} for s in found])
        return
    rows = [(s.row.id, s.state, (s.row.sha256 or "unverified")[:12]) for s in found]
    columns(rows, titles=("id", "state", "sha256"))


@app.command("fetch")
def fetch(ids: Ids = None) -> None:
    """Get assets into the cache, hash checked; nothing that is read is executed."""
    from adversariallm.cli._console import say
    from adversariallm.runs.lookups import asset_store
    from judgezoo.errors import JudgezooError

    store = asset_store()
    failed = 0
    for asset_id in ids or store.ids():
        try:
            say(f"{asset_id}: {store.fetch(asset_id).sha256[:12]}")
        except JudgezooError as error:
            failed += 1
            say(f"{asset_id}: {error}")
    raise typer.Exit(int(failed > 0))


@app.command("verify")
def verify(ids: Ids = None) -> None:
    """Check the hashes of cached assets; 1 where one is damaged."""
    from adversariallm.cli._console import say
    from adversariallm.runs.lookups import asset_store

    store = asset_store()
    found = store.verify(ids or store.ids())
    for status in found:
        if status.state != "missing":
            say(f"{status.row.id}: {status.state}")
    damaged = [s for s in found if s.state == "damaged"]
    here = sum(s.state == "ok" for s in found)
    say(f"{here} of {len(found)} are here and intact, {len(damaged)} damaged")
    raise typer.Exit(int(bool(damaged)))
