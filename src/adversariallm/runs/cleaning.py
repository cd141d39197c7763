"""What dead processes leave in a store, and its removal.

Journals of unfinished runs, failures and damaged runs are never touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from adversariallm.runs.files import TMP_PREFIX, shards

if TYPE_CHECKING:
    from adversariallm.runs.store import Store


def collect(store: Store, older_than_s: float, dry_run: bool) -> list[Path]:
    """Remove leftovers that were last changed so long ago, or only list them."""
    limit_ns = store.now_ns() - older_than_s * 1e9
    old = [p for p in _leftovers(store) if p.exists() and p.stat().st_mtime_ns < limit_ns]
    for path in () if dry_run else old:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return old


def _leftovers(store: Store) -> Iterator[Path]:
    """Yield temporary files, trash, and the work of runs that are published."""
    yield from (store.root / "trash").glob("*")
    yield from store.root.glob(f"{TMP_PREFIX}*")
    for part in ("runs", "work", "failed", "index"):
        yield from (store.root / part).glob(f"{TMP_PREFIX}*")
        yield from (store.root / part).glob(f"??/{TMP_PREFIX}*")
    for shard in shards(store.root / "work"):
        for work in shard.iterdir():
            run_id, _, task = work.name.partition(".")
            if run_id and not task and store.is_published(run_id):
                yield work
            else:
                yield from work.glob(f"{TMP_PREFIX}*")
                yield from work.glob("publish.*")
