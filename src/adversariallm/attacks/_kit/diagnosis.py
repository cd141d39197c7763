"""The target loss of a prompt that a search did not need: computed for the log only.

Its cost is booked as diagnosis, so that no black-box attack looks more expensive than it is.
"""

from __future__ import annotations

from adversariallm.core.protocols import Context, Needs
from adversariallm.core.types import Conversation


def diagnosed_loss(
    ctx: Context, conversation: Conversation, target: str | None, wanted: bool = True
) -> float | None:
    """Mean cross-entropy of the target after the conversation; None where it cannot be had."""
    model = ctx.models[0]
    if not wanted or not target or Needs.LOGITS not in model.gives:
        return None
    segments = model.chat.segments(conversation, target=target)
    if not segments.target_ids:
        return None
    with ctx.phase("diagnosis"):
        return float(model.losses([segments.input_ids], [segments.target_ids]).loss[0])
