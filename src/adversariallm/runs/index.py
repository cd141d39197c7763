"""A cache of all published headers in one Parquet file: thousands of runs listed in a moment.

The directory of runs is the truth: the cache may be deleted at any time and is refreshed by the
modification times of the 256 shards.  It never writes outside `index/` and holds no steps and no
scores.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from pydantic_core import from_json

from adversariallm.runs import document as doc
from adversariallm.runs.files import TMP_PREFIX, CorruptRunError, encode, server_now_ns, shards
from adversariallm.runs.filters import Term, lookup, parse
from adversariallm.runs.store import Store

_COARSE_NS = 2_000_000_000  # modification times within this of a scan may still change unseen
_COLUMNS = {
    "run_id": "VARCHAR",
    "shard_mtime": "BIGINT",
    "dir_mtime": "BIGINT",
    "beside": "VARCHAR[]",
    "header": "VARCHAR",
    "resolved": "VARCHAR",
    "provenance": "VARCHAR",
    "problem": "VARCHAR",
}
_KEPT = ("beside", "header", "resolved", "provenance", "problem")


@dataclass(frozen=True)
class Row:
    """One published run.

    Attributes:
        run_id: Its id.
        beside: Names of the files that later passes stored beside it.
        values: Values of the columns that were asked for, in that order.
    """

    run_id: str
    beside: tuple[str, ...]
    values: tuple[Any, ...]


class Index:
    """Lists and filters the published runs of a store."""

    def __init__(self, store: Store) -> None:
        """Open the cache; nothing is read before the first question."""
        self._store = store
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._directory = store.root / "index"
        self._database = duckdb.connect(config={"autoinstall_known_extensions": False})

    @property
    def path(self) -> Path:
        """The Parquet file, for questions in SQL; `refresh` first."""
        return self._directory / "runs.parquet"

    def close(self) -> None:
        """Give the database's memory back."""
        self._database.close()
        if self._own is not None:
            self._own.cleanup()

    def select(self, where: str | Iterable[str] = (), columns: Sequence[str] = ()) -> list[Row]:
        """Refresh, then return the runs for which all terms hold, sorted by id.

        Args:
            where: Filter terms, see `runs.filters`.
            columns: Dotted paths whose values are wanted, for example `attack.name` or `status`.

        Raises:
            ConfigError: A term cannot be read.
        """
        self.refresh()
        terms = parse(where)
        paths = [term.path for term in parse([f"{column}=0" for column in columns])]
        wanted = [term.path for term in terms] + paths
        rows = []
        for run_id, beside, values in self._values(wanted):
            if all(map(Term.holds, terms, values)):
                rows.append(Row(run_id, tuple(beside), tuple(values[len(terms) :])))
        return rows

    def problems(self) -> dict[str, str]:
        """Refresh, then return what is wrong with each run whose header cannot be read."""
        self.refresh()
        found = self._query("SELECT run_id, problem FROM rows WHERE problem IS NOT NULL")
        return dict(found)

    def _values(self, paths: list[tuple[str, ...]]) -> Iterator[tuple[str, list[str], list[Any]]]:
        """Yield what every header has at these paths.

        The two large parts of a header are only parsed where a path needs them.
        """
        provenance = "provenance" if any(path[0] == "provenance" for path in paths) else "NULL"
        found = self._query(
            f"SELECT run_id, beside, header, resolved, {provenance} FROM rows "
            "WHERE problem IS NULL ORDER BY run_id"
        )
        for run_id, beside, header, resolved, extra in found:
            parsed: dict[str, Any] = from_json(header)
            if extra is not None:
                parsed["provenance"] = from_json(extra)
            values = [lookup(parsed, path) for path in paths]
            if None in values:
                parsed["resolved"] = from_json(resolved)
                values = [lookup(parsed, path) for path in paths]
            yield run_id, beside, values

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        source = f"WITH rows AS (SELECT * FROM read_parquet('{_quoted(self.path)}')) "
        return self._database.execute(source + sql).fetchall()

    # Refreshing

    def refresh(self) -> None:
        """Bring the cache up to date; only shards that changed are looked into."""
        known = self._known()
        times = {p.name: p.stat().st_mtime_ns for p in shards(self._store.root / "runs")}
        before = {run_id[:2]: shard_mtime for run_id, (shard_mtime, _) in known.items()}
        changed = {name for name, mtime in times.items() if before.get(name) != mtime}
        changed |= before.keys() - times.keys()
        if not changed and self.path.exists():
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            now_ns = server_now_ns(self._directory)
        except OSError:  # a store that may only be read
            self._own = self._own or tempfile.TemporaryDirectory(prefix="adversariallm-index.")
            self._directory = Path(self._own.name)
            now_ns = server_now_ns(self._directory)
        rows = [row for name in sorted(changed) for row in self._scan(name, known, now_ns)]
        self._rewrite(rows, changed)

    def _known(self) -> dict[str, tuple[int, int]]:
        """Return shard and directory times of all indexed runs; an unfit cache is dropped."""
        if not self.path.exists():
            return {}
        try:
            self._query(f"SELECT {', '.join(_COLUMNS)} FROM rows LIMIT 0")
            found = self._query("SELECT run_id, shard_mtime, dir_mtime FROM rows")
        except duckdb.Error:
            self.path.unlink(missing_ok=True)
            return {}
        return {run_id: (shard_mtime, dir_mtime) for run_id, shard_mtime, dir_mtime in found}

    def _scan(
        self, name: str, known: dict[str, tuple[int, int]], now_ns: int
    ) -> Iterator[dict[str, Any]]:
        """Yield a row for each run of a shard; an unchanged one without header, to be kept."""
        shard = self._store.root / "runs" / name
        try:
            shard_mtime = shard.stat().st_mtime_ns
            with os.scandir(shard) as entries:
                names = sorted(entry.name for entry in entries)
        except FileNotFoundError:
            return
        busy = any(n.startswith(TMP_PREFIX) for n in names)  # a later pass is being stored
        settled = shard_mtime < now_ns - _COARSE_NS and not busy
        for run_id in names:
            if run_id.startswith("."):
                continue
            directory = shard / run_id
            dir_mtime = directory.stat().st_mtime_ns
            row: dict[str, Any] = {
                "run_id": run_id,
                "shard_mtime": shard_mtime if settled else 0,
                "dir_mtime": dir_mtime if dir_mtime < now_ns - _COARSE_NS else 0,
            }
            if known.get(run_id, (0, 0))[1] != dir_mtime:
                row |= _describe(directory)
            yield row

    def _rewrite(self, rows: list[dict[str, Any]], changed: set[str]) -> None:
        scratch = self._directory / f"{TMP_PREFIX}{uuid.uuid4().hex}"
        fresh, new = scratch.with_suffix(".jsonl"), scratch.with_suffix(".parquet")
        try:
            fresh.write_bytes(b"".join(encode(row) + b"\n" for row in rows))
            self._database.execute(self._merge_sql(fresh, new), [sorted(changed)])
            os.replace(new, self.path)
        finally:
            fresh.unlink(missing_ok=True)
            new.unlink(missing_ok=True)

    def _merge_sql(self, fresh: Path, new: Path) -> str:
        types = ", ".join(f"{name}: '{kind}'" for name, kind in _COLUMNS.items())
        names = ", ".join(_COLUMNS)
        cached = f"SELECT {names} FROM read_parquet('{_quoted(self.path)}')"
        empty = "SELECT " + ", ".join(f"NULL::{k} AS {n}" for n, k in _COLUMNS.items())
        old = cached if self.path.exists() else f"{empty} WHERE false"
        kept = ", ".join(f"coalesce(n.{c}, o.{c}) AS {c}" for c in _KEPT)
        return f"""
            COPY (
                WITH old AS ({old}),
                fresh AS (SELECT * FROM read_json('{_quoted(fresh)}', columns={{{types}}},
                    format='newline_delimited', maximum_object_size=67108864))
                SELECT run_id, n.shard_mtime, n.dir_mtime, {kept}
                FROM fresh n LEFT JOIN old o USING (run_id)
                UNION ALL
                SELECT {names} FROM old WHERE NOT list_contains(?, left(run_id, 2))
            ) TO '{_quoted(new)}' (FORMAT parquet, COMPRESSION zstd)
        """


def _describe(directory: Path) -> dict[str, Any]:
    """Read what the index keeps of one run."""
    beside = sorted(p.name for p in directory.iterdir())
    path = doc.run_file(directory)
    if path is None:
        return {"beside": beside, "problem": f"{directory} holds no run.json"}
    try:
        header = doc.read_header(path)
    except (CorruptRunError, OSError) as error:
        return {"beside": beside, "problem": str(error)}
    beside.remove(path.name)
    parts = {name: encode(header.pop(name, {})).decode() for name in ("resolved", "provenance")}
    return {"beside": beside, "header": encode(header).decode(), **parts}


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
