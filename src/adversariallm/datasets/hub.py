"""One file of any dataset repository on the Hugging Face hub as a dataset.

Downloads it through the asset store; reads CSV, TSV, JSON, JSON lines or Parquet and runs no code
of the repository.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from adversariallm.core.errors import ConfigError, DataError
from adversariallm.core.protocols import DatasetInfo
from adversariallm.datasets._base import Dataset, finish
from adversariallm.datasets._columns import ColumnConfig, behaviors_from
from adversariallm.datasets._files import DataFile, read_csv, read_jsonl, read_records

INFO = DatasetInfo(
    name="hub",
    summary="one file of a dataset repository on the Hugging Face hub",
    source="huggingface.co",
    licence="see the repository",
    purpose="harmfulness",
    harmful=None,
    size=None,
    notes=("gated repositories need a login: `hf auth login`, after accepting their terms",),
)


class Config(ColumnConfig):
    """Options of `hub`."""

    repo: str = Field(description="owner/name of the dataset repository")
    file: str = Field(description="path in the repository: .csv, .tsv, .json, .jsonl or .parquet")
    revision: str | None = Field(None, description="commit; without it nothing is pinned")
    sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="expected hash of the file"
    )


def load(config: Config) -> Dataset:
    """The selected rows.

    Raises:
        DataError: the file cannot be had or has another hash.
    """
    if Path(config.file).suffix not in (".csv", ".tsv", ".json", ".jsonl", ".parquet"):
        raise ConfigError(
            f"datasets.hub.file={config.file!r}: expected .csv, .tsv, .json, .jsonl or .parquet"
        )
    file, path = _download(config)
    items = behaviors_from(file, _rows(file, path, config), config)
    return finish(INFO, config, items, {file.name: file.identity})


def _download(config: Config) -> tuple[DataFile, Path]:
    import tempfile

    from judgezoo.assets import AssetStore
    from judgezoo.errors import JudgezooError

    name = f"hub/{config.repo}/{config.revision or 'main'}/{config.file}"
    row = {
        "id": name,
        "license": "see the repository",
        "filename": Path(config.file).name,
        "sha256": config.sha256,
        "sources": [
            {
                "kind": "hub",
                "hub": config.repo,
                "revision": config.revision,
                "path": config.file,
                "repo_type": "dataset",
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder) / "hub.yaml"
        catalog.write_text(json.dumps([row]), encoding="utf-8")
        try:
            asset = AssetStore(catalogs=[catalog]).fetch(name)
        except JudgezooError as error:
            raise DataError(
                f"{error}\nWithout a network, download the file elsewhere and use dataset=csv or "
                "dataset=jsonl with path=; a gated repository needs `hf auth login` and its terms "
                "accepted on its page"
            ) from error
    return DataFile(name, asset.path.read_bytes(), asset.sha256), asset.path


def _rows(file: DataFile, path: Path, config: Config) -> list[dict[str, Any]]:
    suffix = path.suffix
    if suffix == ".parquet":
        return _parquet(path)
    if suffix == ".jsonl":
        return read_jsonl(file, (config.prompt,))
    if suffix == ".json":
        return read_records(file, (config.prompt,))
    return [*read_csv(file, (config.prompt,), delimiter="\t" if suffix == ".tsv" else ",")]


def _parquet(path: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
