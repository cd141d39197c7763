"""List what can be named: attacks, datasets, defenses, judges, models, chat templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer


def command(
    kind: Annotated[str | None, typer.Argument(help="attacks, datasets, defenses ...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every fact as JSON.")] = False,
) -> None:
    """List attacks, datasets, defenses, judges, models or templates; without a kind, all."""
    from adversariallm.cli._catalog import KINDS, rows
    from adversariallm.cli._console import columns, say, say_json

    found = {k: rows(k) for k in ([kind] if kind else KINDS)}
    if as_json:
        say_json(found[kind] if kind else found)
        return
    for name, entries in found.items():
        say(f"{name} ({len(entries)})")
        shown = _COLUMNS[name.rstrip("s")]
        columns([[get(r) for get in shown.values()] for r in entries], titles=list(shown))


def _field(name: str) -> Callable[[dict[str, Any]], Any]:
    def get(row: dict[str, Any]) -> Any:
        value = row.get(name)
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    return get


_COLUMNS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    "attack": {
        "name": _field("name"), "needs": _field("needs"), "fits": _field("fits"),
        "target": _field("target"), "summary": _field("summary"),
    },
    "dataset": {
        "name": _field("name"), "items": _field("size"), "purpose": _field("purpose"),
        "licence": _field("licence"), "summary": _field("summary"),
    },
    "defense": {
        "name": _field("name"), "passes": _field("passes"), "summary": _field("summary"),
    },
    "judge": {
        "name": _field("name"), "kind": _field("kind"), "measures": _field("semantics"),
        "summary": _field("summary"),
    },
    "model": {
        "name": _field("name"),
        "here": lambda r: "yes" if r.get("on_this_machine") else "no",
        "dtype": _field("dtype"),
        "pin": lambda r: str(r["pin"])[:14],
        "gated": lambda r: {True: "yes", False: "no", None: "?"}[r.get("gated")],
        "checked": _field("checked"),
        "summary": _field("summary"),
    },
    "template": {
        "name": _field("name"), "checked": _field("checked"),
        "compared with": _field("compared_with"), "summary": _field("summary"),
    },
}  # fmt: skip
