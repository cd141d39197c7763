"""Loading and identifying local judge models; nothing here runs them.

Remote code and pickled weights are off unless the caller turns remote code on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from judgezoo.errors import BackendError, MissingExtra

__all__ = ["folder_hash", "load_model", "state_hash", "transformers_module"]


def transformers_module() -> Any:
    """Return transformers; raises MissingExtra when it is not installed."""
    try:
        import transformers
    except ImportError:
        raise MissingExtra("a local judge model", "transformers", "local") from None
    return transformers


def load_model(name: str, setup: Mapping[str, Any], device: str | None) -> Any:
    """Load weights, quantize, attach the adapter, move to the device."""
    transformers = transformers_module()
    import torch

    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    arguments: dict[str, Any] = {
        "revision": setup["revision"],
        "dtype": getattr(torch, setup["dtype"]),
        "trust_remote_code": setup["trust_remote_code"],
    }
    if setup["quantization"] != "none":
        arguments["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_8bit=setup["quantization"] == "8bit",
            load_in_4bit=setup["quantization"] == "4bit",
        )
        arguments["device_map"] = {"": target}
    try:
        family = "AutoModelForImageTextToText" if setup["multimodal"] else "AutoModelForCausalLM"
        model = getattr(transformers, family).from_pretrained(name, **arguments)
    except OSError as error:
        first_line = str(error).strip().splitlines()[0]
        raise BackendError(
            f"the judge model {name!r} could not be loaded: {first_line}; give a local folder, or "
            "accept the model's license on the hub and log in with `hf auth login`"
        ) from None
    if setup["adapter"] is not None:
        model = _with_adapter(model, setup)
    if setup["quantization"] == "none":
        model = model.to(target)
    return model.eval()


def _with_adapter(model: Any, setup: Mapping[str, Any]) -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtra("an adapter", "peft", "local") from None
    adapted = peft.PeftModel.from_pretrained(
        model, setup["adapter"], revision=setup["adapter_revision"]
    )
    return adapted.merge_and_unload() if setup["quantization"] == "none" else adapted


def state_hash(model: Any) -> str:
    """Return a hash of a model's weights."""
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def folder_hash(folder: Path) -> str:
    """Return a hash of the files that decide what a local model says."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".safetensors", ".json", ".jinja", ".model", ".txt"} and path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
