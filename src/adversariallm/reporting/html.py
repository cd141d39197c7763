"""The report: one HTML file that needs no network and trusts nothing a model said.

Text is escaped by the template or set as text by the page's own script; the content security policy
allows that one script and that one style sheet by hash and nothing else. Equal documents give equal
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adversariallm.core.budget import PHASES, Ledgers, Usage
from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.curves import Axis, success_curve
from adversariallm.evaluation.facts import (
    METRIC_TITLES,
    Document,
    Metric,
    Setting,
    distinct_labels,
    flatten,
    group_by_setting,
    has_queries,
    judges_of,
)
from adversariallm.evaluation.flags import raise_flags
from adversariallm.evaluation.trials import Trial, trials_of
from adversariallm.reporting.charts import NUM_COLORS, Series, curve_chart, rate_chart
from adversariallm.reporting.details import setting_tables
from adversariallm.reporting.protocols import protocol_table
from adversariallm.reporting.safety import safety_utility
from adversariallm.reporting.summary import summarize
from adversariallm.reporting.tables import Table
from adversariallm.reporting.text import percent, quantity, visible, visible_line
from adversariallm.reporting.transcripts import transcripts

if TYPE_CHECKING:
    from adversariallm.tokenization import ChatTokenizer

Groups = Sequence[tuple[Setting, Sequence[Document]]]
Rows = list[tuple[str, list[Trial]]]

AXES: tuple[tuple[Axis, str], ...] = (
    ("steps", "step"),
    ("flops", "FLOPs spent (search and answers)"),
    ("queries", "queries (search and answers)"),
    ("seconds", "seconds of search"),
)


def write_report(
    documents: Iterable[Document],
    path: str | os.PathLike[str],
    *,
    threshold: float | None = None,
    chats: Mapping[str, ChatTokenizer] | None = None,
) -> Path:
    """Write the report of joined run documents.

    Args:
        documents: as `store.read` gives them.
        path: the HTML file to write; its folder is made.
        threshold: overrides every judge's own threshold.
        chats: tokenizers by model name (`token_view.chats_of`), for the view of tokens.

    Returns:
        The path written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        render_report(documents, threshold=threshold, chats=chats), encoding="utf-8", newline="\n"
    )
    return target


def render_report(
    documents: Iterable[Document],
    *,
    threshold: float | None = None,
    chats: Mapping[str, ChatTokenizer] | None = None,
) -> str:
    """The report as a string; see `write_report`."""
    documents = sorted(documents, key=lambda d: str(d["run_id"]))
    groups = group_by_setting(documents)
    labels = distinct_labels([s for s, _ in groups])
    names = [_series_name(s, labels) for s, _ in groups]
    index = {s.key: i for i, (s, _) in enumerate(groups)}
    owners = [index[s.key] for s, group in groups for _ in group]
    ordered = [d for _, group in groups for d in group]
    table = summarize(documents, threshold=threshold)
    style, script = _resource("report.css"), _resource("report.js")
    template = _environment().get_template("report.html.j2")
    return template.render(
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        data=_json(
            {
                "settings": names,
                "sets": [visible_line(s.dataset) for s, _ in groups],
                "transcripts": transcripts(ordered, owners, chats),
            }
        ),
        version=version("adversariallm"),
        num_runs=len(documents),
        num_settings=len(groups),
        table=table,
        protocols=protocol_table(documents),
        charts=_charts(groups, labels, threshold),
        rates=_rates(table),
        flags=raise_flags(ordered),
        safety=_safety(documents),
        details=[
            (n, setting_tables(g, threshold=threshold))
            for n, (_, g) in zip(names, groups, strict=True)
        ],
        ledgers=[_ledger(n, s, g) for n, (s, g) in zip(names, groups, strict=True)],
        settings=[_configuration(n, s, g) for n, (s, g) in zip(names, groups, strict=True)],
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("adversariallm.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["visible"] = lambda v: visible_line(str(v))
    return environment


def _resource(name: str) -> str:
    return (resources.files("adversariallm.reporting") / "templates" / name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    def pin(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {pin(script)}; style-src {pin(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: Any) -> Markup:
    """JSON that cannot end its script element, whatever is in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704


def _series_name(setting: Setting, labels: Mapping[str, str]) -> str:
    shield = f" + {setting.defense}" if setting.defense else ""
    return visible_line(f"{labels[setting.key]} on {setting.model}{shield}, {setting.dataset}")


def _charts(
    groups: Groups, labels: Mapping[str, str], threshold: float | None
) -> list[dict[str, Any]]:
    """Attack success by each known budget, for each data set and judge, perhaps model."""
    panels: dict[tuple[str, ...], Rows] = {}
    for setting, group in groups:
        for judge in judges_of(group):
            trials = [
                t
                for t in trials_of(group, judge, threshold=threshold)
                if t.metric == "attack_success"
            ]
            if trials:
                shield = f" + {setting.defense}" if setting.defense else ""
                name = visible_line(f"{labels[setting.key]} on {setting.model}{shield}")
                key = (setting.dataset, judge, setting.model)
                panels.setdefault(key, []).append((name, trials))
    charts = []
    for (dataset, judge), titled in _joined(panels).items():
        for model, rows in titled:
            where = f", {model}" if model else ""
            charts.append(
                {
                    "title": visible_line(f"{dataset}, judged by {judge}{where}"),
                    "plots": _plots(rows),
                    "legend": [name for name, _ in rows],
                }
            )
    return charts


def _joined(
    panels: Mapping[tuple[str, ...], Rows],
) -> dict[tuple[str, str], list[tuple[str, Rows]]]:
    """Models share a chart while their curves have colors of their own, else each has its own."""
    by_judge: dict[tuple[str, str], list[tuple[str, Rows]]] = {}
    for (dataset, judge, model), rows in sorted(panels.items(), key=lambda p: p[0]):
        by_judge.setdefault((dataset, judge), []).append((model, rows))
    return {
        key: parts
        if sum(len(rows) for _, rows in parts) > NUM_COLORS
        else [("", [row for _, rows in parts for row in rows])]
        for key, parts in by_judge.items()
    }


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """One plot for each axis on which anything is known; steps always."""
    found = []
    for axis, title in AXES:
        series = [Series(n, success_curve(t, axis, band="simultaneous")) for n, t in rows]
        if axis == "steps" or any(len(s.curve.x) for s in series):
            found.append(_plot(series, axis, title))
    return found


def _plot(series: Sequence[Series], axis: Axis, x_title: str) -> dict[str, Any]:
    numbers = [
        [s.label, quantity(x), percent(v), f"{percent(a)} to {percent(b)}", int(n)]
        for s in series
        for x, v, a, b, n in zip(
            s.curve.x.tolist(),
            s.curve.value.tolist(),
            s.curve.low.tolist(),
            s.curve.high.tolist(),
            s.curve.n.tolist(),
            strict=True,
        )
    ]
    svg = curve_chart(series, x_title, "attack success", log_x=axis != "steps")
    return {"title": f"by {x_title}", "svg": Markup(svg), "axis": x_title, "numbers": numbers}  # noqa: S704


def _rates(table: Table) -> list[dict[str, Any]]:
    """One chart of rates for each measure that was made."""
    found = []
    for metric, title in METRIC_TITLES.items():
        rows = [
            (
                visible_line(
                    f"{r['attack']} on {r['model']}"
                    + (f" + {r['defense']}" if r["defense"] else "")
                    + f", {r['dataset']} ({r['judge']})"
                ),
                r["rate"],
            )
            for r in table.rows
            if r.get("metric") == metric and r["rate"] is not None
        ]
        if rows:
            svg = Markup(rate_chart(rows, title))  # noqa: S704
            found.append({"title": title, "svg": svg, "help": RATE_HELP[metric]})
    return found


def _safety(documents: Sequence[Document]) -> Table | None:
    """One row per model and defense; rows of their own where one name stands for several setups."""
    try:
        table = safety_utility(documents)
    except ConfigError as error:
        table = safety_utility(documents, separate=True)
        table = replace(table, notes=(*table.notes, str(error)))
    return table if len(table.columns) > 4 and table.rows else None


RATE_HELP: Mapping[Metric, str] = {
    "attack_success": "harmful requests that were answered at any step; lower is more robust",
    "over_refusal": "harmless requests that were refused; lower is better",
    "accuracy": "questions answered correctly; higher is better",
}


def _ledger(name: str, setting: Setting, group: Sequence[Document]) -> dict[str, Any]:
    total = Ledgers()
    for document in group:
        total = total + Ledgers.from_dict(document.get("ledgers", {}))
    rows = [
        (phase, role, total.usage[phase][role])
        for phase in PHASES
        for role in sorted(total.usage.get(phase, {}))
        if total.usage[phase][role] != Usage()
    ]
    counted = all(map(has_queries, group))
    return {
        "name": name,
        "runs": len(group),
        "rows": [
            (
                p,
                r,
                *(
                    quantity(v if v or counted or p == "judging" else None)
                    for v in (
                        u.queries,
                        u.forward_passes,
                        u.backward_passes,
                        u.tokens_processed,
                        u.tokens_cached,
                        u.tokens_generated,
                        u.flops,
                    )
                ),
            )
            for p, r, u in rows
        ],
    }


def _configuration(name: str, setting: Setting, group: Sequence[Document]) -> dict[str, Any]:
    commands = dict.fromkeys(_command(d) for d in group)
    return {
        "name": name,
        "key": setting.key,
        "config": [
            (visible_line(k), visible(json.dumps(v, ensure_ascii=False)))
            for k, v in flatten(setting.config).items()
        ],
        "provenance": [
            (visible_line(k), visible(str(v)))
            for k, v in flatten(group[0].get("provenance", {})).items()
            if k
        ],
        "commands": list(commands),
        "runs": [
            (
                d["run_id"],
                d["config"].get("seed", 0),
                visible_line(", ".join(map(str, _items(d)))),
                visible_line(d.get("status", "done")),
            )
            for d in group
        ],
    }


def _items(document: Document) -> list[str]:
    return [r["behavior"]["id"] for r in document["runs"]]


def _command(document: Document) -> str:
    """The command as it was typed; a run made from Python has only its replay."""
    overrides = document.get("resolved", {}).get("overrides") or ()
    if not overrides:
        return f"adversariallm replay {document['run_id']}"
    return visible_line(shlex.join(["adversariallm", "run", *map(str, overrides)]))
