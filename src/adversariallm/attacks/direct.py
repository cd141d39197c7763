"""Direct request: send the behavior as it stands, the baseline of every comparison.

Read this file first: an attack is an INFO row, a frozen Config and one generator method. It never
samples the scored completions, times itself or touches disk; `runs/execute.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator

from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.types import Candidate, Task

INFO = AttackInfo(
    name="direct",
    summary="the unchanged request, one completion",
    source="baseline; no paper",
    reference_code=None,
    needs=Needs.TEXT,
    modality="none",
    cost="sampling",
)


class Config(FrozenConfig):
    """Direct requests have no options."""


class Attack:
    """Yield the conversation unchanged."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Step 0 is all there is."""
        if ctx.state is None:
            yield Candidate.of(task.behavior.conversation)
