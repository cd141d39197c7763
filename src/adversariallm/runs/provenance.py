"""What has to be known to repeat a run on another day: versions, device, determinism switches.

No user name, path or key is recorded.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from adversariallm.core.protocols import ChatModel

PACKAGES = (
    "adversariallm", "judgezoo", "torch", "transformers", "tokenizers", "safetensors", "peft",
    "accelerate", "bitsandbytes", "numpy",
)  # fmt: skip


@cache
def environment() -> dict[str, Any]:
    """Versions and machine of this process."""
    import torch

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    cuda = torch.cuda.is_available()
    return {
        "packages": versions,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(0) if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": bool(torch.backends.cuda.matmul.allow_tf32) if cuda else False,
    }


def provenance(models: Sequence[ChatModel]) -> dict[str, Any]:
    """Environment, what each model says about itself, and whether its engine passed its check."""
    return {**environment(), "models": [_facts(m) for m in models]}


def _facts(model: ChatModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": model.name, "identity": dict(model.identity())}
    endpoint = facts["identity"].get("endpoint")
    if endpoint is not None:
        ids = endpoint["capabilities"].get("token_ids")
        facts["engine"] = f"endpoint, {'token ids or texts' if ids else 'texts'}: not ours"
    report = getattr(getattr(model, "engine", None), "report", None)
    if report is not None:
        facts["invariance"] = {True: "verified", False: "failed", None: "unverified"}[
            report.invariant
        ]
        facts["self_check"] = {
            "mode": report.mode,
            "device": report.device,
            "dtype": report.dtype,
            "threads": report.threads,
            "difference": report.difference,
        }
    return facts
