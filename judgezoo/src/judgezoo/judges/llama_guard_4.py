"""Llama Guard 4: the probability that the first word is 'unsafe', for text conversations.

Source: Meta 2025, model card. Deviations: system messages are left out and neighboring turns of one
role are merged. Images are not judged.
"""

from __future__ import annotations

from judgezoo.base import JudgeInfo
from judgezoo.judges._guard import LlamaGuardJudge

__all__ = ["INFO", "LlamaGuard4"]

INFO = JudgeInfo(
    name="llama_guard_4",
    summary="Llama Guard 4 (12B) over the whole conversation; p = P(unsafe)",
    kind="classifier",
    source="Meta 2025, model card of Llama-Guard-4-12B",
    semantics="harm",
    keys=("label_mass", "categories"),
    baseline=("meta-llama/Llama-Guard-4-12B",),
    decoding="probability of the first token",
    success="the first word is unsafe",
    license="Llama 4 community license (template in the checkpoint)",
)


class LlamaGuard4(LlamaGuardJudge):
    """Passes contents as typed parts, as the template of this model wants."""

    info = INFO
    multimodal = True

    def typed_parts(self) -> bool:
        """Return true: the model reads text and images."""
        return True
