"""Texts and data of others: fetch, list, verify."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
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
def fetch(
    ids: Ids = None,
    command: Annotated[
        str | None,
        typer.Option("--for", help="All that `run` with these overrides needs, models included."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder to fetch into, to be copied elsewhere.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Any network use is an error.")
    ] = False,
) -> None:
    """Get assets into the cache, hash checked; nothing that is read is executed."""
    settings = _caches(to) if to is not None else {}
    if offline:
        settings |= {"JUDGEZOO_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    os.environ.update(settings)

    from adversariallm.cli._console import say
    from adversariallm.runs.lookups import asset_store
    from adversariallm.runs.needs import Needed, needed
    from adversariallm.runs.needs import fetch as fetch_all

    if command is not None:
        words = shlex.split(command)
        while words and words[0] in ("adversariallm", "run"):
            words.pop(0)
        what = needed(*words)
        what = Needed((*what.assets, *(ids or ())), what.models)
    else:
        what = Needed(tuple(ids or asset_store().ids()), {})
    failed = fetch_all(what, say)
    if to is not None:
        say("on the other machine: export " + " ".join(f"{k}={v}" for k, v in _caches(to).items()))
    raise typer.Exit(int(failed > 0))


def _caches(folder: Path) -> dict[str, str]:
    """The environment that makes one folder hold everything that is fetched."""
    root = folder.absolute()
    return {
        "JUDGEZOO_CACHE": str(root / "judgezoo"),
        "ADVERSARIALLM_CACHE": str(root / "adversariallm"),
        "HF_HOME": str(root / "huggingface"),
    }


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
