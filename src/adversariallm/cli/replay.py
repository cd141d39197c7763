"""Make a stored run's numbers again and compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from adversariallm.runs.replay import Replayed


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="run ids, or their first letters; all without one; out=DIR as in run"),
    ] = None,
    store: Annotated[
        Path, typer.Option("--store", "--out", help="a run store, or a bundle (folder or zip)")
    ] = Path("out"),
    model: Annotated[
        list[str] | None, typer.Option(help="NAME=PLACE: where a model of the run is on this host.")
    ] = None,
    judge_option: Annotated[
        list[str] | None, typer.Option(help="judges.NAME.OPTION=VALUE; the stored ones otherwise.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Also search again and compare every step.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Compare only so many completions of each run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print differences only.")] = False,
) -> None:
    """Make tokens, completions and scores of stored runs again; 1 at the first difference."""
    from dataclasses import asdict

    from adversariallm.cli._console import say, say_json
    from adversariallm.cli._stores import existing_store
    from adversariallm.runs.passes import choose
    from adversariallm.runs.replay import model_places, replay
    from adversariallm.runs.settings import judge_settings
    from adversariallm.runs.worker import Workshop

    words = runs or []
    ids = [word for word in words if not word.startswith("out=")]
    store = next((Path(word[4:]) for word in words if word.startswith("out=")), store)
    judges = judge_settings(judge_option or ())
    places = model_places(model or ())
    workshop = Workshop(judges=judges)
    results = []
    with _unpacked(store) as folder:
        found = existing_store(folder)
        for run_id in choose(found, ids or None, derived=True):
            result = replay(
                found,
                run_id,
                models=places,
                judges=judges,
                search=search,
                limit=limit,
                workshop=workshop,
                say=_silent if quiet or as_json else say,
            )
            results.append(result)
            if not as_json:
                _show(result, quiet)
    if as_json:
        say_json([{**asdict(r), "passed": r.passed} for r in results])
    failed = sum(not r.passed for r in results)
    if not as_json and len(results) != 1:
        say(f"{len(results) - failed} of {len(results)} runs came out equal")
    raise typer.Exit(int(bool(failed)))


def _silent(text: str) -> None:
    """Say nothing."""


def _show(result: Replayed, quiet: bool) -> None:
    from adversariallm.cli._console import say

    if not quiet:
        for text in result.compared:
            say(f"{result.run_id[:12]}: {text}")
        for text in result.notes:
            say(f"{result.run_id[:12]}: note: {text}")
    if result.difference is not None:
        say(f"{result.run_id}: {result.difference}")
    elif not quiet:
        say(f"{result.run_id}: pass")


@contextmanager
def _unpacked(place: Path) -> Iterator[Path]:
    """The store that a path stands for: itself, or in an unpacked or zipped bundle."""
    import tempfile
    import zipfile

    if place.is_file() and zipfile.is_zipfile(place):
        with tempfile.TemporaryDirectory(prefix="replay.") as folder:
            with zipfile.ZipFile(place) as archive:
                archive.extractall(folder)
            yield _inner(Path(folder))
    else:
        yield _inner(place)


def _inner(folder: Path) -> Path:
    bundled = folder / "store"
    return bundled if (bundled / "store.json").is_file() else folder
