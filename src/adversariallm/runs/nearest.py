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
    best: tuple[int, str, dict[str, tuple[Any, Any]]] | None = None
    for row in rows:
        found = difference(row.values[0], wanted)
        if best is None or len(found) < best[0]:
            best = (len(found), row.run_id, found)
    if best is None:
        return f"no run of {spec.attack.name} is stored"
    shown = "; ".join(f"{k}: stored {a!r}, now {b!r}" for k, (a, b) in list(best[2].items())[:4])
    more = f" and {best[0] - 4} more" if best[0] > 4 else ""
    return f"the closest stored run {best[1]} differs in {shown}{more}"


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
