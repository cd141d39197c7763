"""What fixes a model's behavior, as JSON facts that go into run ids.

Weights count by commit, by the hash a catalog row pins, or by content; never by path or name, so an
overwritten checkpoint is another model. Device, sharding and batch size are deliberately absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adversariallm.core.config import stable_hash
from adversariallm.core.errors import ModelError
from adversariallm.models import sources
from adversariallm.models.card import EndpointCard, HubSource, ModelCard, WheelSource
from adversariallm.models.options import ModelOptions

if TYPE_CHECKING:
    from adversariallm.tokenization import ChatTokenizer

CONTENT_FILES = (*sources.WEIGHT_FILES, *sources.TOKENIZER_FILES)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
UNESSENTIAL = frozenset(
    "_name_or_path _model_name_or_path transformers_version _attn_implementation architectures"
    " dtype".split()
)
"""Configuration entries that say where a model is from or how it is run, or are stated apart."""
SETTLED_NS = 2_000_000_000
"""A file younger than this is hashed again next time: its clock may not show a later write."""


def identity(card: ModelCard | EndpointCard, options: ModelOptions | None = None) -> dict[str, Any]:
    """The facts that decide what a model answers; reads the small files and hashes local weights.

    Args:
        card: the fully stated card, from `options.resolve`.
        options: system prompt, reasoning mode and the like.

    Raises:
        ModelError: the weights are not on this machine and their source cannot be asked.
    """
    from adversariallm.models.loading import load_chat
    from adversariallm.models.remote import endpoint_identity

    options = options or ModelOptions()
    if isinstance(card, EndpointCard):
        return endpoint_identity(card, options)
    out: dict[str, Any] = {
        "weights": weights_identity(card),
        "dtype": card.dtype,
        "quantization": card.quantization,
        "chat": load_chat(card, options).identity(),
    }
    if card.adapter is not None:
        out["adapter"] = _adapter_identity(card.adapter)
    if card.context_length is not None:
        out["context_length"] = card.context_length
    if card.stop_tokens:
        out["stop_tokens"] = list(card.stop_tokens)
    if options.trust_remote_code:
        out["trust_remote_code"] = True
    return out


def weights_identity(card: ModelCard) -> dict[str, str]:
    """What fixes the weights, configuration and tokenizer of a card."""
    source = card.source
    if isinstance(source, WheelSource):
        return {"sha256": source.member_sha256}
    if isinstance(source, HubSource):
        return _hub_identity(source)
    return {"content": content_hash(Path(source.path))}


def _hub_identity(source: HubSource) -> dict[str, str]:
    """Repository and commit; where none is known yet, the small files are fetched to learn it."""
    revision = sources.pinned_revision(source)
    if revision is None:
        revision = sources.fetch_hub(source, weights=False).name
    return {"repo": source.repo, "revision": revision}


def _adapter_identity(adapter: str) -> dict[str, str]:
    folder = adapter_folder(adapter, weights=False)
    if folder is not None:
        return {"content": content_hash(folder, ADAPTER_FILES)}
    return _hub_identity(HubSource(repo=adapter))


def adapter_folder(adapter: str, *, weights: bool = True) -> Path | None:
    """Where an adapter lies: a folder, or with `weights` a downloaded hub repository.

    Raises:
        ModelError: the folder holds no adapter in safetensors.
    """
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        if adapter.count("/") != 1 or adapter.startswith((".", "/", "~")):
            raise ModelError(f"adapter {adapter!r}: no such folder; expected a folder or a hub id")
        if not weights:
            return None
        folder = sources.fetch_hub(HubSource(repo=adapter))
    for name in ADAPTER_FILES:
        if not (folder / name).exists():
            raise ModelError(
                f"adapter {adapter!r}: {folder} holds no {name}; expected a PEFT adapter saved as "
                "safetensors (pickled weights are never read)"
            )
    return folder


def content_hash(folder: Path, patterns: Sequence[str] = CONTENT_FILES) -> str:
    """Hash of everything in a folder that a loader reads: weights, configuration, tokenizer.

    Hashes of single files are remembered by inode, size and both time stamps, so that planning many
    runs of one checkpoint reads it once.
    """
    if not folder.is_dir():
        raise ModelError(f"no folder {folder}")
    paths = sorted({p for pattern in patterns for p in folder.glob(pattern)})
    if not paths:
        raise ModelError(f"{folder} holds neither weights nor a configuration")
    memory = sources.cache_dir() / "hashes" / f"{stable_hash(str(folder.resolve()))}.json"
    known = _read_json(memory)
    fresh: dict[str, list[Any]] = {}
    for path in paths:
        status = path.stat()
        mark = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        row = known.get(path.name)
        if row is None or row[:-1] != mark:
            with path.open("rb") as file:
                row = [*mark, hashlib.file_digest(file, "sha256").hexdigest()]
        fresh[path.name] = row
    if fresh != known:
        _remember(memory, fresh)
    return stable_hash({name: row[-1] for name, row in fresh.items()})


def _remember(memory: Path, rows: Mapping[str, list[Any]]) -> None:
    """Store the rows of files that have been still for a while; a cache that may be deleted."""
    now = time.time_ns()
    settled = {name: row for name, row in rows.items() if now - row[3] > SETTLED_NS}
    memory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=memory.parent, delete=False) as file:
        json.dump(settled, file)
    os.replace(file.name, memory)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def parts_identity(model: Any, chat: ChatTokenizer) -> dict[str, Any]:
    """Identity of a model and tokenizer that are objects in memory: a hash of all their content.

    Args:
        model: a transformers model (any `torch.nn.Module` with a `config`).
        chat: its tokenizer and template.
    """
    config = config_facts(model)
    return {
        "weights": {"memory": state_hash(model)},
        "class": type(model).__name__,
        "config": stable_hash(config),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": "checkpoint" if "quantization_config" in config else "none",
        "chat": chat.identity(),
    }


def config_facts(model: Any) -> dict[str, Any]:
    """JSON form of what a configuration says about the computation."""
    config = {k: v for k, v in model.config.to_dict().items() if k not in UNESSENTIAL}
    facts: dict[str, Any] = json.loads(json.dumps(config, default=str))
    return facts


def state_hash(model: Any) -> str:
    """SHA-256 over names, shapes, number formats and bytes of all parameters and buffers."""
    import torch

    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy())
    return sha.hexdigest()[:32]
