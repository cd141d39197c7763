"""Files of other tools: one module per format, each reading or writing joined run documents.

A format module knows its file layout and nothing of the store; `reporting.imports` publishes what
was read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from adversariallm.core.errors import UnknownNameError

EXPORTS = {
    "inspect": "inspect_log",
    "inspect-json": "inspect_log",
    "jailbreakbench": "jailbreakbench",
    "harmbench": "harmbench",
    "table6": "table6",
    "csv": "tidy_files",
    "parquet": "tidy_files",
}
IMPORTS = {
    "jailbreakbench": "jailbreakbench",
    "harmbench": "harmbench",
    "table6": "table6",
    "csv": "answer_files",
    "jsonl": "answer_files",
}

Writer = Callable[..., list[Any]]
Reader = Callable[..., list[dict[str, Any]]]


def writer(name: str) -> Writer:
    """`write(documents, folder, form=name, **options)` of a format; returns the paths written."""
    found: Writer = _module(name, EXPORTS, "export format").write
    return found


def reader(name: str) -> Reader:
    """`read(path, **options)` of an import format; returns run documents with their scores."""
    found: Reader = _module(name, IMPORTS, "import format").read
    return found


def _module(name: str, table: dict[str, str], kind: str) -> ModuleType:
    if name not in table:
        raise UnknownNameError(kind, name, table)
    return importlib.import_module(f"{__name__}.{table[name]}")
