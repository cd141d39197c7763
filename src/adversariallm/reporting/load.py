"""Reading a store for analysis: joined documents, or tidy frames.

It only reads; a damaged run is skipped with a warning that names it, so that one bad file does not
hide the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adversariallm.core.budget import Ledgers
from adversariallm.core.errors import AdversariaLLMError, ConfigError, DataError, StoreError
from adversariallm.evaluation.facts import setting_of
from adversariallm.reporting.tidy import completion_rows, run_rows, step_rows

if TYPE_CHECKING:
    import pandas

Where = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool] | Sequence[str]
FACETS = ("run_id", "model", "attack", "dataset", "defense", "seed", "setting", "status")
_log = logging.getLogger(__name__)


class Frames(NamedTuple):
    """Tidy tables: one row per run, per step of a behavior, and per completion and judge."""

    runs: pandas.DataFrame
    steps: pandas.DataFrame
    completions: pandas.DataFrame


def read_documents(store_path: str | Path, where: Where | None = None) -> list[dict[str, Any]]:
    """All published runs of a store with their scores and judging ledgers joined in.

    Args:
        store_path: the folder given as `out`.
        where: facets that must be equal (`model`, `attack`, `dataset`, `defense`, `seed`,
            `setting`, `status`, `run_id`; a list means any of them), a function of the run's
            header, or filter texts as after `--where` (`runs.filters`), all of which must hold.

    Raises:
        StoreError: there is no such folder.
        ConfigError: an unknown facet.
    """
    from adversariallm.runs.store import Store

    if not Path(store_path).is_dir():
        raise StoreError(f"{store_path} is no folder: expected the folder that `run` got as out=")
    keep = predicate(where)
    store = Store(store_path)
    documents = []
    for run_id in sorted(store.runs()):
        try:
            if not keep(store.header(run_id)):
                continue
            document = store.read(run_id)
            later = (*store.top_ups(run_id), *store.scores(run_id))
            _add_ledgers(document, [part.header for part in later])
        except StoreError as error:
            _log.warning("run %s is left out: %s", run_id, error)
            continue
        documents.append(document)
    return documents


def _add_ledgers(document: dict[str, Any], headers: list[dict[str, Any]]) -> None:
    total = Ledgers.from_dict(document.get("ledgers", {}))
    for header in headers:
        total = total + Ledgers.from_dict(header.get("ledgers", {}))
    document["ledgers"] = total.to_dict()


def predicate(where: Where | None) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a run, given by its header or document, has the facets; see `read_documents`."""
    if where is None:
        return lambda header: True
    if callable(where):
        return where
    if not isinstance(where, Mapping):
        from adversariallm.runs.filters import fits, parse

        terms = parse(where)
        return lambda header: fits(terms, header)
    for name in where:
        if name not in FACETS:
            raise ConfigError(f"where={name!r}: expected some of {', '.join(FACETS)}")
    wanted = {k: set(v) if isinstance(v, (list, tuple, set)) else {v} for k, v in where.items()}
    return lambda header: all(facets(header)[k] in values for k, values in wanted.items())


def nothing_fits(store_path: str | Path, where: Sequence[str] | None) -> AdversariaLLMError:
    """The error for a selection without a run, with the reason."""
    from adversariallm.runs.filters import parse, why_none
    from adversariallm.runs.store import Store

    store = Store(store_path)
    headers = [store.header(run_id) for run_id in store.runs()]
    limits = f" with {' and '.join(where)}" if where else ""
    if not where or not headers:
        return DataError(f"{store_path} has no published run{limits}")
    return ConfigError(f"{store_path}{limits}: {why_none(parse(where), headers)}")


def facets(header: Mapping[str, Any]) -> dict[str, Any]:
    """The values that `where` selects by."""
    setting = setting_of(header)
    return {
        "run_id": header["run_id"],
        "model": setting.model,
        "attack": setting.attack,
        "dataset": setting.dataset,
        "defense": setting.defense,
        "setting": setting.key,
        "seed": header["config"].get("seed", 0),
        "status": header.get("status", "done"),
    }


def load_results(store_path: str | Path, where: Where | None = None) -> Frames:
    """The runs of a store as pandas frames.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "load_results gives pandas frames and pandas is not installed: "
            "pip install 'adversariallm[analysis]', "
            "or use `adversariallm export --to csv`"
        ) from None
    documents = read_documents(store_path, where)
    return Frames(
        *(pd.DataFrame(list(rows(documents))) for rows in (run_rows, step_rows, completion_rows))
    )
