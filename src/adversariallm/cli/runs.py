"""Look at stored runs: list, show, why-skipped, gc."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adversariallm.cli._app import OVERRIDES
from adversariallm.cli._passes import Where

app = typer.Typer(no_args_is_help=True)
Folder = Annotated[Path, typer.Option("--store", "--out", help="the folder given as out=")]
DEFAULT = Path("out")


@app.command("list")
def list_runs(
    store: Folder = DEFAULT,
    where: Where = None,
    limit: Annotated[int, typer.Option(help="How many to print; 0 for all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List published runs."""
    from adversariallm.cli._console import columns, say, say_json
    from adversariallm.cli._stores import existing_store
    from adversariallm.runs.index import Index

    index = Index(existing_store(store))
    paths = (
        "attack.name", "resolved.models", "fit.dataset", "fit.ids", "seed", "status",
        "parent.kind", "parent.run_id",
    )  # fmt: skip
    try:
        found = index.select(where or (), paths)
    finally:
        index.close()
    rows = [_row(r.run_id, r.values, r.beside) for r in found]
    if as_json:
        say_json(rows)
        return
    shown = rows if limit == 0 else rows[:limit]
    titles: tuple[str, ...] = (
        "run_id",
        "attack",
        "model",
        "dataset",
        "items",
        "seed",
        "status",
        "judges",
    )
    if any(r["parent"] for r in shown):
        titles = (*titles, "parent")
    columns([[_text(r[t]) for t in titles] for r in shown], titles=titles)
    say(f"{len(shown)} of {len(rows)} runs")


def _row(run_id: str, values: tuple[Any, ...], beside: tuple[str, ...]) -> dict[str, Any]:
    attack, models, dataset, ids, seed, status, kind, parent = values
    scored = {n.split(".")[1] for n in beside if n.startswith("scores.")}
    judges = sorted({n.partition("-")[0] for n in scored})
    return {
        "run_id": run_id, "attack": attack, "dataset": dataset, "items": ids, "seed": seed,
        "model": [_model(m) for m in models or ()], "status": status, "judges": judges,
        "parent": "" if parent is None else f"{kind} {parent[:8]}",
    }  # fmt: skip


def _model(row: Any) -> str:
    return str(row.get("name", "?")) if isinstance(row, dict) else str(row)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value[:3])) + (f",... ({len(value)})" if len(value) > 3 else "")
    return str(value)


@app.command("show")
def show_run(
    run_id: Annotated[str, typer.Argument(help="id, or its first letters")],
    store: Folder = DEFAULT,
    texts: Annotated[bool, typer.Option(help="Print prompts and answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document.")] = False,
) -> None:
    """Show one run: configuration, steps, scores and cost."""
    from adversariallm.cli._console import flat, say, say_json
    from adversariallm.cli._stores import existing_store, full_id

    found = existing_store(store)
    run_id = full_id(found, run_id)
    document = found.read(run_id)
    if as_json:
        say_json(document)
        return
    say(f"{run_id} ({document['status']}) in {found.run_dir(run_id)}")
    for key, value in flat(document["config"]).items():
        if value not in (None, [], {}):
            say(f"  {key} = {value}")
    for entry in document["runs"]:
        say(f"behavior {entry['behavior']['id']}: {entry['behavior']['goal']}")
        for step in entry["steps"]:
            _show_step(step, texts)
    for phase, roles in document.get("ledgers", {}).items():
        for role, used in roles.items():
            say(f"  {phase}, {role}: " + ", ".join(f"{k} {_count(v)}" for k, v in used.items()))


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _show_step(step: dict[str, Any], texts: bool) -> None:
    from adversariallm.cli._console import say

    loss = step.get("loss")
    scores = "; ".join(
        f"{judge} {key} {values}"
        for judge, by_key in step.get("scores", {}).items()
        for key, values in by_key.items()
        if key == "p_harmful"
    )
    say(f"  step {step['step']}: loss {'-' if loss is None else f'{loss:.4f}'}  {scores}")
    if texts:
        for message in step.get("model_input") or ():
            say(f"    {message['role']}: {message['content']}")
        for text in step.get("model_completions", ()):
            say(f"    -> {text}")


@app.command("why-skipped", context_settings=OVERRIDES)
def why_skipped(
    overrides: Annotated[list[str], typer.Argument(help="the overrides of `run`")],
) -> None:
    """Say of every run of a command why it would be skipped, or why it would run again."""
    from adversariallm.cli._console import say
    from adversariallm.cli.plan import say_unfinished
    from adversariallm.runs.campaign import prepare
    from adversariallm.runs.lookups import installed, open_store
    from adversariallm.runs.nearest import nearest
    from adversariallm.runs.plan import plan

    request, settings = prepare(overrides)
    store = open_store(settings)
    found = plan(request, installed(store), retry=settings.retry)
    for skipped in found.skipped:
        say(f"skipped: {skipped.reason} [{skipped.label}]")
    for planned in found.todo:
        say(f"would run: {planned.task.spec.label}: {nearest(store, planned.task.spec)}")
    say_unfinished(store, found)


@app.command("gc")
def collect(
    store: Folder = DEFAULT,
    older_than_hours: Annotated[float, typer.Option(help="Only what is older.")] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell.")] = False,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Also move damaged runs to corrupt/.")
    ] = False,
) -> None:
    """Remove what killed processes left behind; results, journals and failures stay."""
    from adversariallm.cli._console import say
    from adversariallm.cli._stores import existing_store

    found = existing_store(store)
    for run_id, problem in found.damaged().items() if set_aside else ():
        say(f"{problem} -> {run_id if dry_run else found.set_aside(run_id)}")
    removed = found.gc(older_than_hours * 3600, dry_run)
    for path in removed:
        say(str(path))
    say(f"{len(removed)} leftovers {'found' if dry_run else 'removed'}")
