"""Say whether one group of stored runs does better than another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adversariallm.cli._passes import Where


def command(
    groups: Annotated[list[str], typer.Argument(help="A B [C ...]: filters as after --where")],
    store: Annotated[
        Path, typer.Option("--out", "--store", help="the folder given as out=")
    ] = Path("out"),
    judge: Annotated[
        str | None, typer.Option(help="Judge whose scores are compared; the only one by default.")
    ] = None,
    where: Where = None,
    at: Annotated[
        str | None,
        typer.Option(help="Compare at equal cost: flops, queries, tokens or seconds [=BUDGET]."),
    ] = None,
    when: Annotated[str, typer.Option(help="Steps that count: any, last, best_loss.")] = "any",
    threshold: Annotated[float | None, typer.Option(help="Score that counts as success.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Setting that may differ, e.g. generation.")
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Repeat under every judge that scored both.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare A with B, and with every further group, over the same behaviors and seeds."""
    import dataclasses

    from adversariallm.cli._console import say, say_json
    from adversariallm.cli._stores import existing_store
    from adversariallm.reporting.comparisons import compare_groups, describe_sensitivity

    existing_store(store)
    found = compare_groups(
        store,
        groups,
        where=where or (),
        judge=judge,
        at=at,
        when=when,
        threshold=threshold,
        allow=allow or (),
    )
    if as_json:
        say_json([dataclasses.asdict(c) | {"sentence": c.sentence()} for c in found])
    else:
        for comparison in found:
            say(comparison.sentence())
            if comparison.only_a or comparison.only_b:
                say(f"  left out: {comparison.only_a} only in A, {comparison.only_b} only in B")
            if comparison.allowed:
                say(f"  allowed to differ: {', '.join(comparison.allowed)}")
    if sensitivity:
        for line in describe_sensitivity(store, groups, where=where or (), judge=judge):
            say(line)
