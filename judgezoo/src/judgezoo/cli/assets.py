"""``judgezoo assets``: fetch, list and verify the texts of published judges."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from judgezoo.assets import AssetStatus, AssetStore
from judgezoo.cli._common import write_table
from judgezoo.errors import AssetError, InvalidOption
from judgezoo.registry import judge_class

__all__ = ["assets_app"]

assets_app = typer.Typer(no_args_is_help=True, help="Texts of published judges, by id and hash.")

Folder = Annotated[Path | None, typer.Option("--to", help="cache folder, to copy elsewhere")]


@assets_app.command("fetch")
def fetch(
    ids: Annotated[list[str] | None, typer.Argument(help="asset ids")] = None,
    judge: Annotated[list[str] | None, typer.Option(help="all texts of a judge")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all texts of the catalog")] = False,
    command: Annotated[
        str | None, typer.Option("--for", help="all that a judgezoo command line needs")
    ] = None,
    to: Folder = None,
    offline: Annotated[bool, typer.Option(help="make any network use an error")] = False,
) -> None:
    """Fetch texts into the cache; each is checked against its pinned hash."""
    store = AssetStore(to, offline=offline or None)
    judges = [*(judge or []), *(_judges_of(command) if command else [])]
    wanted = list(store.ids()) if everything else list(ids or [])
    for name in judges:
        wanted += judge_class(name).info.assets
    if not wanted and not judges:
        raise InvalidOption("give asset ids, --judge NAME, --for COMMAND or --all")
    failed = 0
    for asset_id in dict.fromkeys(wanted):
        try:
            asset = store.fetch(asset_id)
        except AssetError as error:
            failed += 1
            typer.echo(f"{asset_id}: {error}", err=True)
        else:
            row = store.row(asset_id)
            notice = f"  ({row.notice})" if row.notice else ""
            typer.echo(f"{asset_id}  {asset.sha256[:16]}  {row.license}{notice}")
    if to is not None:
        typer.echo(f"copy {to} and set JUDGEZOO_CACHE to the copy, JUDGEZOO_OFFLINE=1")
    _name_models(judges)
    if failed:
        raise typer.Exit(1)


@assets_app.command("list")
def list_assets(to: Folder = None) -> None:
    """List the texts of the catalog and whether a good copy is cached."""
    _print(AssetStore(to).list())


@assets_app.command("verify")
def verify(
    ids: Annotated[
        list[str] | None, typer.Argument(help="asset ids; all cached by default")
    ] = None,
    to: Folder = None,
) -> None:
    """Hash the cached copies; exit code 1 when one is damaged or a named one is missing."""
    store = AssetStore(to)
    found = store.verify(ids or store.ids())
    _print(found)
    bad = {"damaged", "missing"} if ids else {"damaged"}
    if any(status.state in bad for status in found):
        raise typer.Exit(1)


def _print(found: Iterable[AssetStatus]) -> None:
    write_table(
        [
            (
                status.row.id,
                status.state,
                (status.row.sha256 or "unverified")[:16],
                status.row.license,
                status.source or "-",
            )
            for status in found
        ],
        ("asset", "state", "sha256", "license", "fetched from"),
    )


def _judges_of(command: str) -> list[str]:
    """Return the judges that a ``judgezoo score`` or ``compare`` command line names."""
    words = shlex.split(command)
    names = [after for word, after in zip(words, words[1:], strict=False) if word == "--judge"]
    names += [word.removeprefix("--judge=") for word in words if word.startswith("--judge=")]
    bases = [word.removeprefix("base_judge=") for word in words if word.startswith("base_judge=")]
    if not names:
        raise InvalidOption(f"no --judge in {command!r}")
    return [*names, *bases]


def _name_models(judges: Sequence[str]) -> None:
    """Say which weights the judges need, since they are not texts."""
    for name in judges:
        info = judge_class(name).info
        if info.kind in {"classifier", "generative"}:
            typer.echo(f"{name} also needs weights: one of {', '.join(info.baseline)}")
