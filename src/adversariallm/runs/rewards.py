"""A judgezoo judge as a source of rewards inside a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adversariallm.core.types import Conversation

if TYPE_CHECKING:
    from judgezoo import Judge


class Rewards:
    """Rewards in [0, 1]; a row that the judge cannot score has None, never 0."""

    def __init__(self, judge: Judge) -> None:
        """Wrap a judge whose backend already charges the run's meter."""
        self._judge = judge

    def rewards(
        self, conversations: Sequence[Conversation], contexts: Sequence[Mapping[str, Any]]
    ) -> list[float | None]:
        """Reward per conversation: the goal as user turn, the answer as assistant turn."""
        columns = self._judge([c.to_dicts() for c in conversations], list(contexts))
        values: list[float | None] = columns[self._judge.info.score_key]
        return values
