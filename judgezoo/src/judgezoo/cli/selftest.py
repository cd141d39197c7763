"""``judgezoo selftest``: neutral stored cases against the real model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from judgezoo.cli._common import build_judge, write_table
from judgezoo.selftest import run_selftest

__all__ = ["selftest"]


def selftest(
    judge: Annotated[str, typer.Argument(help="name of the judge")],
    variant: Annotated[str, typer.Option(help="official or judgezoo")] = "official",
    backend: Annotated[str | None, typer.Option(help="as in `judgezoo score`")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="key=value")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the fingerprint")] = False,
) -> None:
    """Judge the stored cases; exit code 1 when a score is out of range or depends on its batch."""
    built = build_judge(judge, variant, backend, option or [], quiet=as_json)
    report = run_selftest(built)
    if as_json:
        typer.echo(json.dumps(built.fingerprint(), indent=1))
    else:
        write_table(
            [
                (
                    case.id,
                    case.error or f"{case.score:.6f}",
                    f"[{case.low}, {case.high}]",
                    "-" if case.alone is None else f"{case.alone:.6f}",
                    "ok" if case.in_range else "OUT OF RANGE",
                )
                for case in report.cases
            ],
            ("case", "score", "range", "alone", "verdict"),
        )
        typer.echo("passed" if report.passed else "FAILED")
    if not report.passed:
        raise typer.Exit(1)
