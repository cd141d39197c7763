"""Published data files: got through the asset store, checked by hash, read as UTF-8.

Rows come out as the file has them, except line ends; each dataset knows what its columns mean.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from adversariallm.core.errors import ConfigError, DataError
from adversariallm.datasets._config import DatasetConfig

if TYPE_CHECKING:
    from judgezoo.assets import AssetStore

FETCH = "adversariallm assets fetch"
DATA_FOLDER = "ADVERSARIALLM_DATA"
EXTRA_CELLS = "\0"


class FileConfig(DatasetConfig):
    """Options of datasets that are read from published files."""

    custom: str | None = Field(
        None,
        description="your own file, or a folder whose files replace the pinned ones of that name; "
        "results then say custom:<SHA-256>",
    )


@dataclass(frozen=True)
class DataFile:
    """The content of one file and what identifies it.

    Attributes:
        name: how messages call it.
        data: its bytes.
        identity: SHA-256, with `custom:` before it for a user's own file.
    """

    name: str
    data: bytes
    identity: str

    @property
    def source(self) -> str | None:
        """What behaviors say of a user's own file; None for the pinned one."""
        return self.identity if self.identity.startswith("custom:") else None

    @property
    def text(self) -> str:
        """The content as UTF-8, a byte order mark removed, line ends as they are."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name} is not UTF-8 at byte {error.start}; save it as UTF-8"
            ) from error


def catalogs() -> list[Path]:
    """The catalogs of pinned files, one for each dataset, for the asset store."""
    folder = Path(str(files("adversariallm.datasets") / "catalog"))
    return sorted(folder.glob("*.yaml"))


def get_files(config: FileConfig, *asset_ids: str) -> dict[str, DataFile]:
    """The files of a dataset by asset id: the user's own where named, else the pinned ones.

    Raises:
        DataError: a file cannot be had, or is not the pinned one; the message has both hashes.
        ConfigError: `custom` names nothing.
    """
    from judgezoo.assets import AssetStore

    rows = {f"{asset.split('/')[0]}.yaml" for asset in asset_ids}
    store = AssetStore(catalogs=[p for p in catalogs() if p.name in rows], command=FETCH)
    found = {} if config.custom is None else _own_files(config.custom, store, asset_ids)
    missing = [asset for asset in asset_ids if asset not in found]
    return {**found, **_pinned(store, missing)}


def _own_files(custom: str, store: AssetStore, asset_ids: Sequence[str]) -> dict[str, DataFile]:
    place = Path(custom)
    if place.is_file():
        paths = {asset_ids[0]: place}
    else:
        paths = {a: p for a in asset_ids if (p := place / store.row(a).filename).is_file()}
    if not paths:
        names = ", ".join(store.row(a).filename for a in asset_ids[:5])
        raise ConfigError(f"custom={custom!r} is neither a file nor a folder with any of: {names}")
    return {asset: own_file(str(path)) for asset, path in paths.items()}


def own_file(path: str) -> DataFile:
    """A file of the user.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path!r} cannot be read: {error.strerror}; check the path") from error
    return DataFile(path, data, f"custom:{hashlib.sha256(data).hexdigest()}")


def _pinned(store: AssetStore, asset_ids: Sequence[str]) -> dict[str, DataFile]:
    from judgezoo.errors import HashMismatch, JudgezooError

    try:
        assets = store.fetch_many(asset_ids) if asset_ids else ()
    except HashMismatch as error:
        raise DataError(
            f"{error}. Other content is refused; if you mean this file, name it with custom=<path>"
        ) from error
    except JudgezooError as error:
        rows = [store.row(a) for a in asset_ids]
        places = "; ".join(
            f"{s.path} (SHA-256 {row.sha256 or 'unverified'})"
            for row in rows[:3]
            for s in row.sources
            if s.kind == "local"
        )
        raise DataError(
            f"{error}\nWithout a network, put the file into the folder that {DATA_FOLDER} names, "
            f"as {places}"
        ) from error
    return {a.id: DataFile(a.id, a.path.read_bytes(), a.sha256) for a in assets}


def read_csv(
    file: DataFile, columns: Iterable[str] = (), *, delimiter: str = ","
) -> list[dict[str, str]]:
    """Rows of a CSV file with a header; every cell is text, "None" and "NA" included.

    Args:
        file: what to read.
        columns: names that must be in the header.
        delimiter: what separates cells.

    Raises:
        DataError: a column is missing, a row is short or long, or the file is cut off.
    """
    reader = csv.DictReader(
        io.StringIO(file.text, newline=""), strict=True, delimiter=delimiter, restkey=EXTRA_CELLS
    )
    rows: list[dict[str, str]] = []
    try:
        require_columns(file, reader.fieldnames or (), columns)
        for row in reader:
            if None in row.values() or EXTRA_CELLS in row:
                raise DataError(
                    f"{file.name}: record {len(rows) + 1} has not "
                    f"{len(reader.fieldnames or ())} cells; the file is damaged or cut off"
                )
            rows.append(dict(row))
    except csv.Error as error:
        raise DataError(
            f"{file.name}: record {len(rows) + 1}: {error}; the file is damaged or cut off"
        ) from error
    return rows


def read_json(file: DataFile) -> Any:
    """The value of a JSON file.

    Raises:
        DataError: it is not JSON.
    """
    try:
        return json.loads(file.text)
    except ValueError as error:
        raise DataError(
            f"{file.name} is not JSON: {error}; the file is damaged or cut off"
        ) from error


def read_jsonl(file: DataFile, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object per line; empty lines are skipped.

    Raises:
        DataError: a line is no JSON object or lacks a column.
    """
    rows = []
    for number, line in enumerate(file.text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file.name}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{file.name}: line {number} is no JSON object")
        require_columns(file, row, columns)
        rows.append(row)
    return rows


def read_records(file: DataFile, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The objects of a JSON file that holds one list of them.

    Raises:
        DataError: it is something else, or an object lacks a column.
    """
    rows = read_json(file)
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise DataError(f"{file.name}: expected a list of JSON objects")
    wanted = list(columns)
    for row in rows:
        require_columns(file, row, wanted)
    return rows


def require_columns(
    file: DataFile, present: Iterable[str] | Mapping[str, Any], wanted: Iterable[str]
) -> None:
    """Refuse data without the columns that are read.

    Raises:
        DataError: with the columns that are there.
    """
    have = list(present)
    lacking = [c for c in wanted if c not in have]
    if lacking:
        raise DataError(f"{file.name} has no column {lacking[0]!r}; it has: {', '.join(have)}")


def text_ids(texts: Sequence[str]) -> list[str]:
    """Stable ids for items that the publisher gave none: 12 digits of the SHA-256 of the text.

    A repeated text gets `-2`, `-3` and so on behind the digits.
    """
    seen: Counter[str] = Counter()
    ids = []
    for text in texts:
        digits = hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]
        seen[digits] += 1
        ids.append(digits if seen[digits] == 1 else f"{digits}-{seen[digits]}")
    return ids
