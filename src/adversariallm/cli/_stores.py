"""What the commands that look at stored runs share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adversariallm.core.errors import StoreError

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
