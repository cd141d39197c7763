"""What the commands share: reading rows, building a judge from options, safe printing."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from judgezoo.base import Judge
from judgezoo.deviation import ReproductionWarning
from judgezoo.errors import InvalidOption

__all__ = ["InputRow", "build_judge", "plain", "progress_line", "read_rows"]

_CONTEXT = ("goal", "target", "reference", "category", "context")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class InputRow:
    """One line of the input."""

    id: Any
    conversation: Any
    context: dict[str, Any]
    label: Any
    score: Any


def plain(text: str) -> str:
    """Return a text without control characters and direction marks, for terminals."""
    return _CONTROL.sub("", text)


def read_rows(source: str) -> list[InputRow]:
    """Read JSONL from a file or, for ``-``, from standard input.

    A line is a list of messages, or an object with ``conversation`` (or ``messages``) and any of
    id, label, goal, target, reference, category, context. A line that is no JSON becomes a row
    that cannot be judged.
    """
    stream = sys.stdin if source == "-" else Path(source).open(encoding="utf-8")
    try:
        with stream:
            lines = [line for line in stream if line.strip()]
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{source} is not UTF-8 text: {error}") from None
    return [_row(number, line) for number, line in enumerate(lines)]


def _row(number: int, line: str) -> InputRow:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return InputRow(number, value, {}, None, None)
    conversation = value.get("conversation", value.get("messages"))
    context = {key: value[key] for key in _CONTEXT if value.get(key) is not None}
    return InputRow(
        value.get("id", number), conversation, context, value.get("label"), value.get("p_harmful")
    )


def build_judge(
    name: str, variant: str, backend: str | None, options: Sequence[str], *, quiet: bool
) -> Judge:
    """Build a judge from command-line values; deviations go to standard error.

    Args:
        name: of the judge.
        variant: official or judgezoo.
        backend: text form of the backend.
        options: ``key=value`` with YAML values.
        quiet: print no deviations.

    Raises:
        InvalidOption: an option without an equals sign.
    """
    parsed: dict[str, Any] = {}
    for option in options:
        key, found, value = option.partition("=")
        if not found:
            raise InvalidOption(f"option {option!r} is not of the form key=value")
        try:
            parsed[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InvalidOption(f"option {key!r}: {value!r} is no YAML value") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReproductionWarning)
        judge = Judge.from_name(name, variant=variant, backend=backend, **parsed)  # type: ignore[arg-type]
    if not quiet:
        for text in judge.deviations:
            typer.echo(f"note: {plain(text)}", err=True)
    return judge


def progress_line(quiet: bool) -> Any:
    """Return a progress callback that rewrites one line on a terminal, or None."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        sys.stderr.write(f"\rjudged {done} of {total}{end}")
        sys.stderr.flush()

    return show


def write_table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> None:
    """Print aligned columns."""
    table = [list(header), *[[plain(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
