"""Stored runs read under a published protocol, in words, with every deviation beside the number.

Values and rules of the protocols are in `evaluation.protocols`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adversariallm.evaluation.facts import Document, group_by_setting, judge_view, judges_of
from adversariallm.evaluation.protocols import apply, protocol_of
from adversariallm.reporting.text import percent


def protocol_lines(documents: Sequence[Document], name: str) -> Iterator[str]:
    """For each setting and judge of harm: the number with interval, then its deviations."""
    protocol = protocol_of(name)
    yield f"protocol {name}: {protocol.aggregation} ({protocol.source})"
    for setting, group in group_by_setting(documents):
        judges = [j for j in judges_of(group) if judge_view(j).semantics != "utility"]
        own = [j for j in judges if judge_view(j).name == protocol.judge]
        for judge in own or judges:
            found = apply(group, name, judge)
            value, interval = found.value.value, found.value.interval
            if value is None or interval is None:
                continue
            yield (
                f"{setting.label}, {judge}: {percent(value)} "
                f"[{percent(interval.low)}, {percent(interval.high)}] of {found.value.n} behaviors"
            )
            for deviation in found.deviations:
                yield f"  deviates: {deviation}"
