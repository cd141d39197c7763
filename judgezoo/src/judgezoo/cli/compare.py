"""``judgezoo compare``: how well judges agree with the labels of a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from judgezoo.agreement import Agreement, Rate, agreement
from judgezoo.cli._common import InputRow, build_judge, progress_line, read_rows, write_table
from judgezoo.errors import InvalidOption

__all__ = ["compare"]


def compare(
    file: Annotated[str, typer.Argument(help="JSONL file with a label (true or false) per row")],
    judge: Annotated[
        list[str] | None, typer.Option(help="judge, repeatable; none takes the rows' p_harmful")
    ] = None,
    variant: Annotated[str, typer.Option(help="official or judgezoo")] = "official",
    backend: Annotated[str | None, typer.Option(help="as in `judgezoo score`")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="key=value")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="score that counts as positive; the judge's by default")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    quiet: Annotated[bool, typer.Option(help="no notes, no progress")] = False,
) -> None:
    """Print agreement, false positives and negatives, kappa and calibration per judge."""
    rows = read_rows(file)
    labels = [_label(row) for row in rows]
    found: dict[str, Agreement] = {}
    if not judge:
        scores = [row.score for row in rows]
        found["p_harmful of the file"] = agreement(scores, labels, threshold=threshold or 0.5)
    for name in judge or []:
        built = build_judge(name, variant, backend, option or [], quiet=quiet)
        results = built(
            [row.conversation for row in rows],
            [row.context for row in rows],
            progress=progress_line(quiet),
        )
        limit = built.info.threshold if threshold is None else threshold
        found[name] = agreement(results[built.info.score_key], labels, threshold=limit)
    if as_json:
        typer.echo(json.dumps({name: asdict(value) for name, value in found.items()}, indent=1))
        return
    _print(found)


def _label(row: InputRow) -> bool:
    if row.label in (0, 1, True, False) and row.label is not None:
        return bool(row.label)
    raise InvalidOption(f"row {row.id!r}: label is {row.label!r}, expected true, false, 0 or 1")


def _rate(rate: Rate) -> str:
    if rate.value is None:
        return "-"
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}] ({rate.hits}/{rate.total})"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"


def _print(found: dict[str, Agreement]) -> None:
    header = ("judge", "agreement", "false positive", "false negative", "kappa", "unscored")
    write_table(
        [
            (
                name,
                _rate(value.agree),
                _rate(value.false_positive),
                _rate(value.false_negative),
                _number(value.kappa),
                str(value.unscored),
            )
            for name, value in found.items()
        ],
        header,
    )
    for name, value in found.items():
        typer.echo(f"\ncalibration of {name} (Brier score {_number(value.brier)})")
        write_table(
            [
                (f"{b.low:.1f}-{b.high:.1f}", _number(b.mean_score), _rate(b.positive))
                for b in value.calibration
            ],
            ("scores", "mean", "share of positive labels"),
        )
