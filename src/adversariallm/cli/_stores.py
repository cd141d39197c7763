"""What the commands that look at stored runs share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Around everything that writes where the user said: a refusal names the place.

    Raises:
        ConfigError: the file system does not let us.
    """
    try:
        yield
    except OSError as error:
        at = f" at {error.filename}" if error.filename not in (None, str(place)) else ""
        raise ConfigError(
            f"{place} cannot be written: {error.strerror or error}{at}; expected a place in a "
            "folder that exists and may be written"
        ) from error
