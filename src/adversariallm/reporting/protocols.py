"""Stored runs read under a published protocol: the number, and every deviation beside it.

Values and rules of the protocols are in `evaluation.protocols`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from adversariallm.evaluation.facts import (
    Document,
    Setting,
    group_by_setting,
    judge_view,
    judges_of,
)
from adversariallm.evaluation.protocols import Protocol, apply, protocol_of
from adversariallm.reporting.tables import Column, Table
from adversariallm.reporting.text import percent

COLUMNS = (
    Column("protocol", "protocol"),
    Column("setting", "runs"),
    Column("judge", "judge"),
    Column("number", "number [95 %]"),
    Column("behaviors", "behaviors", "count"),
    Column("deviations", "deviates from what is published"),
)


def protocol_table(documents: Sequence[Document], name: str | None = None) -> Table:
    """One row per setting and judge.

    Args:
        documents: joined run documents.
        name: protocol for all of them; None takes the runs that were made under one, each under
            its own.

    Raises:
        UnknownNameError: no such protocol.
    """
    if name is not None:
        chosen = {name: list(documents)}
    else:
        chosen = {}
        for document in documents:
            own = document.get("resolved", {}).get("protocol")
            if own:
                chosen.setdefault(own, []).append(document)
    rows: list[dict[str, Any]] = []
    notes = []
    for key, found in sorted(chosen.items()):
        protocol = protocol_of(key)
        notes.append(f"{key}: {protocol.aggregation} ({protocol.source})")
        for setting, group in group_by_setting(found):
            rows += _rows(protocol, setting, group)
    return Table("Published protocols", COLUMNS, tuple(rows), tuple(notes))


def _rows(
    protocol: Protocol, setting: Setting, group: Sequence[Document]
) -> Iterator[dict[str, Any]]:
    judges = [j for j in judges_of(group) if judge_view(j).semantics != "utility"]
    base = {"protocol": protocol.name, "setting": setting.label}
    for judge in [j for j in judges if judge_view(j).name == protocol.judge] or judges:
        found = apply(group, protocol.name, judge)
        value, interval = found.value.value, found.value.interval
        if value is None or interval is None:
            shown = "no scored answer to a harmful request"
        else:
            ends = f"{100 * interval.low:.1f}, {100 * interval.high:.1f}"
            shown = f"{percent(value)} [{ends}]"
        yield base | {
            "judge": judge,
            "number": shown,
            "behaviors": found.value.n,
            "deviations": "; ".join(found.deviations) or "nothing",
            "told": found.deviations,
        }
    if not judges:
        yield base | {
            "number": f"not judged: adversariallm judge out=STORE judge={protocol.judge}",
            "deviations": f"no judge, published {protocol.judge}",
            "told": (f"no judge, published {protocol.judge}",),
        }


def protocol_lines(documents: Sequence[Document], name: str | None = None) -> Iterator[str]:
    """The table as lines for a terminal; nothing where no run is under a protocol."""
    table = protocol_table(documents, name)
    for row in table.rows:
        judge = f", {row['judge']}" if row.get("judge") else ""
        count = f" of {row['behaviors']} behaviors" if row.get("behaviors") else ""
        yield f"{row['protocol']}: {row['setting']}{judge}: {row['number']}{count}"
        for deviation in row["told"]:
            yield f"  deviates: {deviation}"
    yield from table.notes
