"""A cache of results keyed by content, so that judging the same rows again costs nothing.

Rows that failed at the provider are never kept; nothing is ever taken from another judge, option,
prompt or model, because the judge's fingerprint names the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from judgezoo.base import Judge, Progress
from judgezoo.conversation import Conversation, RowContext

__all__ = ["ResultCache"]

_NOT_KEPT = frozenset({"provider_error"})


class ResultCache:
    """Results of judges in one folder, a file per judge fingerprint and a line per row."""

    def __init__(self, folder: Path | str) -> None:
        """Keep the folder; it is made at the first write.

        Args:
            folder: where the files lie.
        """
        self._folder = Path(folder)

    def score(
        self,
        judge: Judge,
        conversations: Sequence[Conversation],
        contexts: Sequence[RowContext | str | None] | None = None,
        *,
        progress: Progress | None = None,
    ) -> dict[str, list[Any]]:
        """Score conversations, asking the judge only about rows that are not in the cache.

        Args:
            judge: the judge.
            conversations: as for the judge.
            contexts: as for the judge.
            progress: as for the judge, about the rows that it is asked about.
        """
        facts = list(contexts) if contexts is not None else [None] * len(conversations)
        if len(facts) != len(conversations):
            raise ValueError(
                f"contexts has {len(facts)} entries for {len(conversations)} conversations"
            )
        path = self._folder / f"{judge.fingerprint_id()}.jsonl"
        known = _read(path)
        keys = [_key(row, fact) for row, fact in zip(conversations, facts, strict=True)]
        missing = {key: index for index, key in enumerate(keys) if key not in known}
        chosen = sorted(missing.values())
        fresh = judge(
            [conversations[i] for i in chosen], [facts[i] for i in chosen], progress=progress
        )
        known |= {keys[i]: {k: v[n] for k, v in fresh.items()} for n, i in enumerate(chosen)}
        self._append(path, {keys[i]: known[keys[i]] for i in chosen})
        return {name: [known[key][name] for key in keys] for name in fresh}

    def _append(self, path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the results worth keeping, in one write."""
        lines = [
            json.dumps({"key": key, "result": result}) + "\n"
            for key, result in results.items()
            if result["error"] not in _NOT_KEPT
        ]
        if lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="ascii") as file:
                file.write("".join(lines))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file of results; a line that was cut off is ignored."""
    if not path.is_file():
        return {}
    known = {}
    for line in path.read_text(encoding="ascii").splitlines():
        try:
            entry = json.loads(line)
            known[entry["key"]] = entry["result"]
        except (ValueError, KeyError, TypeError):
            continue
    return known


def _key(conversation: Any, context: Any) -> str:
    """Return a hash of a row's content."""
    text = json.dumps([conversation, context], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
