"""What the commands that look at stored runs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from adversariallm.runs.store import Store


def existing_store(path: Path | str) -> Store:
    """The store in a folder.

    Raises:
        StoreError: there is none.
    """
    from adversariallm.runs.store import Store

    if not (Path(path) / "store.json").is_file():
        raise StoreError(f"{path} is no run store: expected the folder that `run` got as out=")
    return Store(path)


def facets(where: Sequence[str] | None) -> dict[str, Any] | None:
    """`FACET=VALUE` texts as a mapping; several values of one facet are alternatives.

    Raises:
        ConfigError: a text is something else.
    """
    found: dict[str, list[Any]] = {}
    for text in where or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--where {text!r}: expected FACET=VALUE, as in attack=gcg")
        values = [int(v) if name == "seed" and v.isdecimal() else v for v in value.split(",")]
        found.setdefault(name, []).extend(values)
    return dict(found) or None


def selected(store: Store, where: Sequence[str] | None) -> list[str]:
    """Ids of the published runs whose facets are as asked.

    Raises:
        ConfigError: an unknown facet.
    """
    from adversariallm.reporting.load import predicate

    keep = predicate(facets(where))
    return [run_id for run_id in store.runs() if keep(store.header(run_id))]


def full_id(store: Store, text: str) -> str:
    """The run id that starts with `text`.

    Raises:
        StoreError: no run, or several, start so.
    """
    found = [run_id for run_id in store.runs() if run_id.startswith(text)]
    if len(found) != 1:
        what = "no run starts" if not found else f"{len(found)} runs start"
        raise StoreError(f"{what} with {text!r} in {store.root}; `runs list` shows all ids")
    return found[0]
