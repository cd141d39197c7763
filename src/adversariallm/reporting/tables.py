"""A table that knows its columns, for terminals, CSV, Markdown and LaTeX.

Cells hold values, not text: CSV gets the full numbers, the other forms get them rounded by the
column's kind.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from adversariallm.evaluation.intervals import Rate
from adversariallm.reporting.text import percent, quantity, rate_text, seconds_text, visible_line


def _plain(value: Any) -> str:
    return "-" if value is None or value == "" else visible_line(str(value))


_SHOW: Mapping[str, Callable[[Any], str]] = {
    "text": _plain,
    "count": quantity,
    "share": percent,
    "rate": lambda v: "-" if v is None else rate_text(v),
    "seconds": seconds_text,
    "number": lambda v: "-" if v is None else f"{v:.3g}",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: key into the rows, heading, and the kind that decides how a value is shown."""

    key: str
    title: str
    kind: str = "text"

    def show(self, row: Mapping[str, Any]) -> str:
        """The cell as text for people."""
        return _SHOW[self.kind](row.get(self.key))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns, with notes that say what a reader must know.

    Attributes:
        extra: columns that only CSV shows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    extra: tuple[Column, ...] = ()

    def to_rich(self) -> RichTable:
        """For a terminal; no cell is read as markup."""
        table = RichTable(
            title=Text(self.title),
            caption=Text("\n".join(self.notes)),
            box=box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            padding=(0, 1),
            collapse_padding=True,
            pad_edge=False,
        )
        for column in self.columns:
            text = column.kind == "text"
            longest = max((len(column.show(row)) for row in self.rows), default=0)
            table.add_column(
                column.title,  # titles wrap; numbers do not, and names keep room for a word
                justify="left" if text else "right",
                overflow="fold",
                min_width=min(longest, 10) if text else longest,
            )
        for row in self.rows:
            table.add_row(*(Text(c.show(row)) for c in self.columns))
        return table

    def to_markdown(self) -> str:
        """A GitHub-flavored table."""
        lines = [
            " | ".join(c.title for c in self.columns),
            " | ".join("---" if c.kind == "text" else "---:" for c in self.columns),
        ]
        lines += [" | ".join(_markdown(c.show(row)) for c in self.columns) for row in self.rows]
        return (
            "\n".join([*(f"| {line} |" for line in lines), *("\n" + n for n in self.notes)]) + "\n"
        )

    def to_latex(self) -> str:
        """A booktabs tabular."""
        align = "".join("l" if c.kind == "text" else "r" for c in self.columns)
        body = [" & ".join(latex(c.show(row)) for c in self.columns) + r" \\" for row in self.rows]
        head = " & ".join(latex(c.title) for c in self.columns) + r" \\"
        notes = [f"% {visible_line(n)}" for n in self.notes]
        return "\n".join(
            [
                *notes,
                rf"\begin{{tabular}}{{{align}}}",
                r"\toprule",
                head,
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )

    def to_csv(self) -> str:
        """Full numbers; a rate becomes several columns: value, low, high, hits, n, unscored ..."""
        out = io.StringIO()
        flat = [_flat(self.columns + self.extra, row) for row in self.rows]
        names = list(dict.fromkeys(k for row in flat for k in row)) or [c.key for c in self.columns]
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        return out.getvalue()


def _flat(columns: Sequence[Column], row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for column in columns:
        value = row.get(column.key)
        if isinstance(value, Rate):
            low, high = (
                (value.interval.low, value.interval.high) if value.interval else (None, None)
            )
            flat |= {
                column.key: value.value,
                f"{column.key}_low": low,
                f"{column.key}_high": high,
                f"{column.key}_hits": value.hits,
                f"{column.key}_n": value.n,
                f"{column.key}_unscored": value.unscored,
                f"{column.key}_worst": value.worst,
                f"{column.key}_best": value.best,
                f"{column.key}_method": value.method,
            }
        else:
            flat[column.key] = _inert_cell(value)
    return flat


def _inert_cell(value: Any) -> Any:
    """Text that no spreadsheet takes for a formula."""
    if isinstance(value, str):
        shown = visible_line(value)
        return "'" + shown if shown[:1] in "=+-@" and shown else shown
    return value


def _markdown(text: str) -> str:
    return "".join("\\" + c if c in "\\|`*_<>[]" else c for c in text)


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)


def write_csv(table: Table, path: str | os.PathLike[str]) -> None:
    """Write a table as UTF-8 CSV."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(table.to_csv())
