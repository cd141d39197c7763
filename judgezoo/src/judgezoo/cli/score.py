"""``judgezoo score``: conversations in JSONL, scores out as JSONL or CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from judgezoo.cache import ResultCache
from judgezoo.cli._common import InputRow, build_judge, plain, progress_line, read_rows

__all__ = ["score"]


def score(
    file: Annotated[str, typer.Argument(help="JSONL file of conversations, or - for stdin")],
    judge: Annotated[str, typer.Option(help="name of the judge; see `judgezoo list`")],
    out: Annotated[Path | None, typer.Option(help="output file; stdout by default")] = None,
    format: Annotated[  # noqa: A002
        Literal["jsonl", "csv"] | None, typer.Option(help="by the suffix of --out, else jsonl")
    ] = None,
    variant: Annotated[str, typer.Option(help="official or judgezoo")] = "official",
    backend: Annotated[
        str | None, typer.Option(help="openai:MODEL[@URL], anthropic:MODEL or local:NAME")
    ] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="key=value")] = None,
    cache: Annotated[Path | None, typer.Option(help="folder of results to reuse")] = None,
    quiet: Annotated[bool, typer.Option(help="no notes, no progress")] = False,
) -> None:
    """Score every conversation of FILE; exit code 1 when some rows have no score."""
    rows = read_rows(file)
    chosen = build_judge(judge, variant, backend, option or [], quiet=quiet)
    chosen.prepare()
    conversations, contexts = [row.conversation for row in rows], [row.context for row in rows]
    show = progress_line(quiet)
    if cache is None:
        results = chosen(conversations, contexts, progress=show)
    else:
        results = ResultCache(cache).score(chosen, conversations, contexts, progress=show)
    as_csv = format == "csv" or (format is None and out is not None and out.suffix == ".csv")
    text = _csv(rows, results) if as_csv else _jsonl(rows, results)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
    errors = Counter(code for code in results["error"] if code is not None)
    if errors:
        listed = ", ".join(f"{count} {code}" for code, count in sorted(errors.items()))
        typer.echo(
            f"{sum(errors.values())} of {len(rows)} rows without a score: {listed}", err=True
        )
        raise typer.Exit(1)


def _jsonl(rows: list[InputRow], results: dict[str, list[Any]]) -> str:
    lines = (
        json.dumps({"id": row.id, **{key: values[i] for key, values in results.items()}})
        for i, row in enumerate(rows)
    )
    return "".join(line + "\n" for line in lines)


def _csv(rows: list[InputRow], results: dict[str, list[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["id", *results])
    for i, row in enumerate(rows):
        writer.writerow([_cell(row.id), *(_cell(values[i]) for values in results.values())])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula and no terminal for a command."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = plain(value) if isinstance(value, str) else json.dumps(value)
    return "'" + text if text.lstrip()[:1] in {"=", "+", "-", "@"} else text
