"""Puts documents that were made elsewhere into a store, to be judged, reported and exported.

Scores that came with them are stored as a judge's scores, under the judge's own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from adversariallm.core.config import stable_hash

if TYPE_CHECKING:
    from adversariallm.runs.store import Store


def publish(store: Store, documents: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Publish documents; what is in the store already is left as it is.

    Returns:
        Ids that were added, and ids that were there.
    """
    added: list[str] = []
    known: list[str] = []
    for document in documents:
        run_id = document["run_id"]
        claim = store.claim(run_id, document["config"], retry=True)
        if isinstance(claim, str):
            known.append(run_id)
        else:
            with claim:
                claim.publish(_without_scores(document))
            added.append(run_id)
        _store_scores(store, run_id, document)
    return added, known


def _without_scores(document: Mapping[str, Any]) -> dict[str, Any]:
    runs = [
        {**run, "steps": [{**step, "scores": {}} for step in run["steps"]]}
        for run in document["runs"]
    ]
    return {**document, "runs": runs}


def _store_scores(store: Store, run_id: str, document: Mapping[str, Any]) -> None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for i, run in enumerate(document["runs"]):
        for j, step in enumerate(run["steps"]):
            for judge, table in step["scores"].items():
                rows.setdefault(judge, []).append(
                    {"run": i, "step": j, "start": 0, "scores": table}
                )
    for judge, found in rows.items():
        judge_id = f"imported-{stable_hash(judge, 12)}"
        if not store.scores(run_id, judge_id):
            store.write_scores(run_id, judge_id, found, {"judge": judge, "imported": True})
