"""Safety and utility in one row per model, defense and attacker's knowledge of the defense.

A row is one model (weights, adapter, dtype, template, system prompt), one stack of defenses and one
way of decoding; unlike things are refused, not mixed. A robust model that answers nothing shows as
such, and a defense shows what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adversariallm.core.budget import Ledgers
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.facts import (
    METRIC_TITLES,
    UNDEFENDED,
    Document,
    Setting,
    flatten,
    group_by_setting,
    judges_of,
)
from adversariallm.evaluation.success import rate
from adversariallm.evaluation.trials import trials_of
from adversariallm.reporting.summary import summarize
from adversariallm.reporting.tables import Column, Table

IDENTITY = ("models", "defense", "generation", "knowledge")
PLAIN = "direct"
"""The attack that searches nothing: what an attacker knows does not change its rate."""


def safety_utility(
    documents: Sequence[Document], *, judge: str | None = None, separate: bool = False
) -> Table:
    """The table; columns are attacks by data set, over-refusal and accuracy by data set, and cost.

    Args:
        documents: joined run documents.
        judge: use only this judge for attack success and over-refusal.
        separate: give settings of one name that differ in model, defense or decoding rows of their
            own instead of refusing.

    Raises:
        ConfigError: one model name stands for different models or decodings; the message names the
            difference.
    """
    rows: dict[str, tuple[Setting, list[Document]]] = {}
    for setting, group in group_by_setting(documents):
        key = stable_hash({k: setting.config.get(k) for k in IDENTITY})
        rows.setdefault(key, (setting, []))[1].extend(group)
    _require_one_each([s for s, _ in rows.values()], separate)
    filled = [_row(setting, group, judge) for setting, group in rows.values()]
    _share(filled, [s for s, _ in rows.values()])
    filled.sort(key=lambda row: (row["model"], row["defense"], row["knowledge"]))
    found = list(dict.fromkeys(k for row in filled for k in row if isinstance(k, tuple)))
    order = {m: i for i, m in enumerate(METRIC_TITLES)}
    found.sort(key=lambda k: (order[k[0]], k[1:]))
    columns = [Column("model", "model"), Column("defense", "defense")]
    if any(row["knowledge"] for row in filled):
        columns.append(Column("knowledge", "knowledge"))
    titles, notes = _titles(found)
    columns += [Column(_key(k), titles[k], "rate") for k in found]
    columns += [
        Column("flops", "FLOPs per answer", "count"),
        Column("defense_queries", "defense queries per answer", "number"),
        Column("defense_flops", "defense FLOPs per answer", "count"),
    ]
    table = [
        {(_key(k) if isinstance(k, tuple) else k): v for k, v in row.items()} for row in filled
    ]
    notes += (
        "lower attack success and over-refusal and higher accuracy are better; 95 % intervals",
        "a dash means that it was not measured",
    )
    if any(row["knowledge"] for row in filled):
        notes += (
            "knowledge: an unaware attacker attacks the model without the defense, black_box "
            "through it, adaptive with losses or gradients through it or its surrogate",
            "undefended: what the bare model says to the very same inputs",
        )
    return Table("Safety and utility", tuple(columns), tuple(table), notes)


def _attack(setting: Setting, label: str) -> str:
    """The attack; inputs found on the very model without its defense are an unaware attacker's."""
    parent = setting.config.get("parent") or {}
    unaware = setting.defense and parent.get("kind") == "inputs"
    if unaware and parent.get("made_for") == setting.model:
        return str(setting.config["attack"]["name"])
    return label


def _share(rows: Sequence[dict[Any, Any]], settings: Sequence[Setting]) -> None:
    """Give rows that differ in knowledge alone what does not depend on it."""
    alike: dict[str, list[dict[Any, Any]]] = {}
    for row, setting in zip(rows, settings, strict=True):
        key = stable_hash({k: setting.config.get(k) for k in IDENTITY if k != "knowledge"})
        alike.setdefault(key, []).append(row)
    for same in alike.values():
        cells = {
            cell: value
            for row in same
            for cell, value in row.items()
            if isinstance(cell, tuple) and (cell[0] != "attack_success" or cell[2] == PLAIN)
        }
        for row in same:
            for cell, value in cells.items():
                row.setdefault(cell, value)


def _require_one_each(settings: Sequence[Setting], separate: bool) -> None:
    by_name: dict[tuple[str, str, str], list[Setting]] = {}
    for setting in settings:
        key = (setting.model, setting.defense, setting.knowledge)
        by_name.setdefault(key, []).append(setting)
    for (model, defense, _knowledge), same in by_name.items():
        if len(same) > 1 and not separate:
            flat = [flatten({k: s.config.get(k) for k in IDENTITY}) for s in same]
            paths = sorted({p for f in flat for p in f if len({repr(g.get(p)) for g in flat}) > 1})
            shown = "; ".join(
                f"{p}: {', '.join(sorted({repr(f.get(p)) for f in flat}))}" for p in paths[:6]
            )
            shield = f" behind {defense}" if defense else ""
            raise ConfigError(
                f"{model}{shield} stands for {len(same)} different setups that differ in {shown}: "
                "they do not belong into one row. Select one with where=, "
                "or give each a row with separate=True"
            )


Cell = tuple[Any, ...]


def _row(setting: Setting, group: Sequence[Document], judge: str | None) -> dict[Any, Any]:
    row: dict[Any, Any] = {
        "model": setting.model,
        "defense": setting.defense,
        "knowledge": setting.knowledge,
    }
    settings = {s.key: (s, documents) for s, documents in group_by_setting(group)}
    for found in summarize(group).rows:
        metric = found.get("metric")
        if metric is None or (
            judge is not None and metric != "accuracy" and found["judge"] != judge
        ):
            continue
        own, documents = settings[found["setting"]]
        attack = _attack(own, found["attack"]) if metric == "attack_success" else ""
        key: Cell = (metric, found["dataset"], attack, found["judge"])
        row[key] = found["rate"]
        bare = f"{found['judge']}{UNDEFENDED}"
        if metric == "attack_success" and bare in judges_of(documents, undefended=True):
            row[*key[:3], bare] = rate(trials_of(documents, bare), "any")
    total = Ledgers()
    answers = 0
    for document in group:
        total = total + Ledgers.from_dict(document.get("ledgers", {}))
        answers += sum(len(s["model_completions"]) for r in document["runs"] for s in r["steps"])
    if answers:
        flops = total.total("sampling").flops
        row["flops"] = None if flops is None else flops / answers
        defense = total.total("sampling", role="defense")
        row["defense_queries"] = defense.queries / answers
        row["defense_flops"] = None if defense.flops is None else defense.flops / answers
    return row


def _key(cell: Cell) -> str:
    return "/".join(str(part) for part in cell if part)


def _titles(cells: Sequence[Cell]) -> tuple[dict[Cell, str], tuple[str, ...]]:
    """A title for each cell; a data set and judge that all cells of a metric share go to a note."""
    titles: dict[Cell, str] = {}
    notes: list[str] = []
    for metric, title in METRIC_TITLES.items():
        same = [cell for cell in cells if cell[0] == metric]
        sources = {(cell[1], cell[3].removesuffix(UNDEFENDED)) for cell in same}
        if len(sources) == 1:
            dataset, judge = sources.pop()
            notes.append(f"{title}: on {dataset}, by {judge}")
        for cell in same:
            _, dataset, attack, judge = cell
            raw = ", undefended" if judge.endswith(UNDEFENDED) else ""
            parts = [attack] if attack else []
            if notes[-1:] != [f"{title}: on {dataset}, by {judge.removesuffix(UNDEFENDED)}"]:
                parts.append(f"{dataset} ({judge.removesuffix(UNDEFENDED)})")
            titles[cell] = f"{title}{raw}" + (f": {', '.join(parts)}" if parts else "")
    return titles, tuple(notes)
