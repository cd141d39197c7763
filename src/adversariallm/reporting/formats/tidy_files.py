"""Tidy CSV or Parquet: runs, steps, and completions by judge.

Parquet is written by DuckDB, which the run index needs anyway.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adversariallm.core.errors import DataError
from adversariallm.evaluation.facts import Document
from adversariallm.reporting.tidy import completion_rows, run_rows, step_rows

TABLES = {"runs": run_rows, "steps": step_rows, "completions": completion_rows}
_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}


def write(
    documents: Sequence[Document], folder: Path, *, form: str = "csv", judge: str | None = None
) -> list[Path]:
    """Write `runs`, `steps` and `completions` tables.

    Args:
        documents: joined run documents.
        folder: where the files go.
        form: `csv` or `parquet`.
        judge: keep only this judge's rows of `completions`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, make in TABLES.items():
        rows = [r for r in make(documents) if judge is None or r.get("judge", judge) == judge]
        path = folder / f"{name}.{form}"
        if form == "csv":
            _write_csv(path, rows)
        else:
            with tempfile.TemporaryDirectory() as temporary:
                plain = Path(temporary) / "rows.csv"
                _write_csv(plain, rows, null="\\N")
                _to_parquet(plain, path, rows)
        paths.append(path)
    return paths


def _write_csv(path: Path, rows: Sequence[dict[str, Any]], *, null: str = "") -> None:
    names = list(dict.fromkeys(k for row in rows for k in row))
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([null if row.get(n) is None else row[n] for n in names] for row in rows)


def _to_parquet(source: Path, target: Path, rows: Sequence[dict[str, Any]]) -> None:
    import duckdb

    names = list(dict.fromkeys(k for row in rows for k in row))
    if not names:
        raise DataError("there are no rows to write as Parquet: the selection has no completions")
    types = {n: _type([row.get(n) for row in rows]) for n in names}
    with duckdb.connect() as connection:
        table = connection.read_csv(
            str(source),
            header=True,
            dtype=types,
            na_values=["\\N"],
            quotechar='"',
            escapechar='"',
            delimiter=",",
            all_varchar=False,
            auto_detect=False,
            columns=types,
            max_line_size=100_000_000,
        )
        table.write_parquet(str(target))


def _type(values: Sequence[Any]) -> str:
    kinds = {type(v) for v in values if v is not None}
    if kinds == {int, float}:
        return "DOUBLE"
    return _TYPES.get(kinds.pop(), "VARCHAR") if len(kinds) == 1 else "VARCHAR"
