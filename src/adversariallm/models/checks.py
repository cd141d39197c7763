"""Remembers the engine's self-check per machine and model shape, so that it runs once.

What it remembers is a measurement of this machine; it is a cache that may be deleted.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from adversariallm.core.config import stable_hash
from adversariallm.inference.engine import Engine
from adversariallm.inference.selfcheck import Report
from adversariallm.models.identity import config_facts
from adversariallm.models.sources import cache_dir


def checked_engine(model: Any) -> Engine:
    """An engine whose report is this machine's, measured now or earlier for the same shapes."""
    memory = cache_dir() / "selfcheck" / f"{_shape_key(model)}.json"
    known = _read(memory)
    if known is None:
        engine = Engine(model)
        _write(memory, engine.report)
        return engine
    engine = Engine(model, policy=known.policy)
    engine.report = known
    return engine


def _shape_key(model: Any) -> str:
    """Everything the bits of a product may depend on: shapes, formats, devices, libraries, host."""
    parameters = {
        f"{tuple(p.shape)} {p.dtype} {p.device} {type(p).__name__}" for p in model.parameters()
    }
    return stable_hash(
        [
            type(model).__name__,
            config_facts(model),
            sorted(parameters),
            [torch.__version__, transformers.__version__, torch.get_num_threads()],
            [torch.backends.cpu.get_cpu_capability(), platform.machine(), platform.node()],
            [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        ]
    )


def _read(path: Path) -> Report | None:
    try:
        return Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, report: Report) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(report.to_dict(), file)
    os.replace(file.name, path)
