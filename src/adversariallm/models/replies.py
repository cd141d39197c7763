"""Remembers what was paid for: replies of remote models, so that a resumed run repeats no call.

A reply belongs to its whole request and to the random stream of its sample, so two samples of one
prompt are two entries. Failures are not kept, and neither is any key.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from adversariallm.core.budget import Usage
from adversariallm.core.types import Reply


class ReplyCache:
    """One small file per reply, written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Keep replies under `folder`."""
        self.folder = folder

    def get(self, key: str) -> Reply | None:
        """The reply of that request; None where there is none that can be read."""
        try:
            row = json.loads(self._path(key).read_text(encoding="utf-8"))
            return Reply(**{**row, "usage": Usage.from_dict(row["usage"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, key: str, reply: Reply) -> None:
        """Remember a reply that is no failure."""
        if reply.error is not None:
            return
        row = asdict(reply)
        kept = ("text", "finish_reason", "reasoning", "raw")
        content = {name: row[name] for name in kept} | {"usage": reply.usage.to_dict()}
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump(content, file, ensure_ascii=False)
        os.replace(file.name, path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
