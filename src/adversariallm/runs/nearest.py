"""Why a run is not taken from the store: the stored run that comes closest, and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adversariallm.runs.index import Index

if TYPE_CHECKING:
    from adversariallm.runs.spec import RunSpec
    from adversariallm.runs.store import Store


def nearest(store: Store, spec: RunSpec) -> str:
    """One sentence: nothing similar is stored, or what differs from the most similar run."""
    if not (store.root / "runs").is_dir():
        return "the store is empty"
    index = Index(store)
    try:
        rows = index.select(f"attack.name={spec.attack.name}", ["config"])
    finally:
        index.close()
    wanted = spec.semantic()
    found = [(row.run_id, difference(row.values[0], wanted)) for row in rows]
    if not found:
        return f"no run of {spec.attack.name} is stored"
    same_items = [(i, d) for i, d in found if not any(k.startswith("fit.") for k in d)]
    if not same_items:
        return f"no run of {spec.attack.name} on these items is stored"
    run_id, differs = min(same_items, key=lambda pair: len(pair[1]))
    shown = "; ".join(f"{k}: stored {a!r}, now {b!r}" for k, (a, b) in list(differs.items())[:4])
    more = f" and {len(differs) - 4} more" if len(differs) > 4 else ""
    return f"the closest stored run {run_id} differs in {shown}{more}"


def difference(a: Any, b: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """The leaves in which two JSON values differ, by dotted path."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        out: dict[str, tuple[Any, Any]] = {}
        for key in sorted({*a, *b}):
            out |= difference(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
        return out
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        out = {}
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            out |= difference(x, y, f"{path}.{i}")
        return out
    return {} if a == b else {path: (a, b)}
