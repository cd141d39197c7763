"""Catalog rows: what an asset is called, where it is published, what it hashes to.

It reads YAML and checks it; it fetches nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from judgezoo.errors import AssetError

__all__ = [
    "AssetRow",
    "GithubSource",
    "HubSource",
    "LocalSource",
    "NpmSource",
    "Source",
    "WheelSource",
    "read_catalog",
    "read_catalogs",
]

Transform = tuple[Any, ...]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*(?:/[A-Za-z0-9][A-Za-z0-9._@+-]*)*")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Source(_Row):
    """What all sources share.

    Attributes:
        symbol: name of the constant or dotted path inside the file; None takes the whole file.
        transform: named steps that restore the published text, see `judgezoo.assets.extract`.
        note: one line for people.
    """

    symbol: str | None = None
    transform: tuple[Transform, ...] = ()
    note: str = ""


class WheelSource(_Source):
    """A member of a released wheel, taken as data.

    Attributes:
        wheel: ``name==version``.
        wheel_sha256: SHA-256 of the wheel file, None when nobody has verified it yet.
        member: path inside the wheel; with ``*`` all members that match, sorted by path and read
            as one JSON object of path and text.
    """

    kind: Literal["wheel"] = "wheel"
    wheel: str = Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+$")
    wheel_sha256: Sha256 | None = None
    member: str


class NpmSource(_Source):
    """A member of a package of the npm registry, taken as data.

    Attributes:
        npm: ``name@version``.
        npm_sha256: SHA-256 of the packed file, None when nobody has verified it yet.
        member: path inside it.
    """

    kind: Literal["npm"] = "npm"
    npm: str = Field(pattern=r"^(@[a-z0-9._-]+/)?[a-z0-9._-]+@[A-Za-z0-9.+-]+$")
    npm_sha256: Sha256 | None = None
    member: str


class HubSource(_Source):
    """A file of a Hugging Face repository at a revision.

    Attributes:
        hub: repository id.
        revision: commit; None means the default branch (pin unverified).
        path: file in the repository.
        repo_type: model or dataset.
    """

    kind: Literal["hub"] = "hub"
    hub: str
    revision: str | None = None
    path: str
    repo_type: Literal["model", "dataset"] = "model"


class GithubSource(_Source):
    """A file of a GitHub repository at a commit.

    Attributes:
        github: ``owner/repository``.
        commit: commit or tag; None means the default branch (pin unverified).
        path: file in the repository.
    """

    kind: Literal["github"] = "github"
    github: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
    commit: str | None = None
    path: str


class LocalSource(_Source):
    """A file below a folder that an environment variable names.

    Attributes:
        env: the variable.
        path: file below the folder.
    """

    kind: Literal["local"] = "local"
    env: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    path: str


Source = WheelSource | NpmSource | HubSource | GithubSource | LocalSource


class AssetRow(_Row):
    """One asset.

    Attributes:
        id: name by which runs record it.
        sources: where it is published, tried in order.
        license: license of the text.
        sha256: hash of the extracted bytes; None means nobody has verified it yet.
        filename: name of the cached file.
        summary: one line.
        placeholders: slots of a prompt.
        url: page to read about it.
        notice: what a user must know before use, shown when fetched.
    """

    id: str
    sources: tuple[Source, ...] = Field(min_length=1)
    license: str
    sha256: Sha256 | None = None
    filename: str = Field(default="content.txt", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    summary: str = ""
    placeholders: tuple[str, ...] = ()
    url: str = ""
    notice: str = ""

    @field_validator("id")
    @classmethod
    def _safe_id(cls, value: str) -> str:
        if not _ID.fullmatch(value):
            raise ValueError("an id holds letters, digits, . _ @ + - and single slashes")
        return value

    @property
    def pin(self) -> Literal["verified", "unverified"]:
        """Whether the catalog holds the hash."""
        return "unverified" if self.sha256 is None else "verified"


def read_catalog(path: Path) -> list[AssetRow]:
    """Read one catalog file.

    Args:
        path: YAML file that holds a list of rows.

    Raises:
        AssetError: the file is not such a list; the message names file, row and field.
    """
    return list(_parse_catalog(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _parse_catalog(path: Path, _changed_ns: int) -> tuple[AssetRow, ...]:
    """Parse a catalog; parsed once per version of the file, since stores are made often."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    if not isinstance(rows, list):
        raise AssetError(f"{path}: expected a list of asset rows, got {type(rows).__name__}")
    result = []
    for number, row in enumerate(rows):
        try:
            result.append(AssetRow.model_validate(row))
        except ValidationError as error:
            name = row.get("id", f"row {number}") if isinstance(row, dict) else f"row {number}"
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise AssetError(f"{path}: {name}: {where}: {first['msg']}") from None
    return tuple(result)


def read_catalogs(paths: Iterable[Path]) -> dict[str, AssetRow]:
    """Read several catalogs into one mapping.

    Raises:
        AssetError: two rows share an id; the message names both files.
    """
    rows: dict[str, AssetRow] = {}
    origin: dict[str, Path] = {}
    for path in paths:
        for row in read_catalog(path):
            if row.id in rows:
                raise AssetError(f"asset {row.id!r} stands in {origin[row.id]} and in {path}")
            rows[row.id], origin[row.id] = row, path
    return rows
