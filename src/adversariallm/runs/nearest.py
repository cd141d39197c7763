"""Why a run is not taken from the store: the run that comes closest, stored or left unfinished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adversariallm.runs.index import Index
from adversariallm.runs.spec import RunSpec, RunTask

if TYPE_CHECKING:
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
    return f"the closest stored run {run_id} differs in {_shown(differs)}"


def left_unfinished(store: Store, planned: Sequence[RunSpec]) -> str:
    """One sentence on the runs that nobody goes on with and that are not among the planned ones.

    Args:
        store: where they are.
        planned: what a command asks for.

    Returns:
        How many there are and how the closest differs; empty where there are none.
    """
    if not (store.root / "work").is_dir():
        return ""
    wanted = {spec.run_id for spec in planned}
    stopped = [k for k, state in store.survey().items() if state in ("expired", "released")]
    specs = [spec for key in stopped if key not in wanted and (spec := _spec_of(store, key))]
    if not specs:
        return ""
    near = [
        (len(differs), spec.run_id, differs)
        for spec in specs
        for other in planned
        if other.attack.name == spec.attack.name
        and (differs := difference(spec.semantic(), other.semantic()))
    ]
    told = min(near, key=lambda found: found[:2], default=None)
    closest = f" (the closest, {told[1]}, differs in {_shown(told[2])})" if told else ""
    return (
        f"unfinished runs of other commands: {len(specs)}{closest}; "
        f"`adversariallm resume {store.root} --all` repeats those commands as well"
    )


def _spec_of(store: Store, key: str) -> RunSpec | None:
    """The specification of an unfinished run; None for a later pass, and where it is damaged."""
    try:
        text = (store.root / "work" / key[:2] / key / "config.json").read_bytes()
        return RunTask.model_validate_json(text).spec
    except (OSError, ValueError):
        return None


def _shown(differs: Mapping[str, tuple[Any, Any]]) -> str:
    shown = "; ".join(f"{k}: stored {a!r}, now {b!r}" for k, (a, b) in list(differs.items())[:4])
    return shown + (f" and {len(differs) - 4} more" if len(differs) > 4 else "")


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
