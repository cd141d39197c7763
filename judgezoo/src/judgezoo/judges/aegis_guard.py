"""Aegis Guard: Llama Guard 1 with NVIDIA's adapters, permissive or defensive.

Source: Ghosh et al. 2024, arXiv 2404.05993. Deviations: the last answer of a conversation is
judged. ``variant="judgezoo"`` repeats the double beginning-of-text token. The policy text could not
be compared with the model card; what the two adapters make of "needs caution" is theirs.
"""

from __future__ import annotations

from judgezoo.base import JudgeInfo
from judgezoo.conversation import Row
from judgezoo.filling import Filled, fill
from judgezoo.judges._finetuned import ClassifierJudge, FinetunedOptions
from judgezoo.judges._readout import label_ids

__all__ = ["INFO", "AegisGuard"]

_PROMPT = "judge/aegis_guard"
_ADAPTERS = {
    False: "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Permissive-1.0",
    True: "nvidia/Aegis-AI-Content-Safety-LlamaGuard-Defensive-1.0",
}

INFO = JudgeInfo(
    name="aegis_guard",
    summary="Llama Guard 1 with the Aegis adapter (permissive or defensive); p = P(unsafe)",
    kind="classifier",
    source="Ghosh et al. 2024 (arXiv 2404.05993)",
    semantics="harm",
    keys=("label_mass",),
    baseline=("meta-llama/LlamaGuard-7b",),
    decoding="probability of the first token",
    success="unsafe",
    variants=("official", "judgezoo"),
    assets=(_PROMPT,),
    license="Llama 2 community license (policy text)",
)


class AegisGuard(ClassifierJudge):
    """Reads safe or unsafe after the policy and the conversation."""

    info = INFO
    doubles_bos = True

    class Options(FinetunedOptions):
        """Options of Aegis Guard.

        Attributes:
            defensive: use the defensive adapter, for which "needs caution" is unsafe.
        """

        defensive: bool = False

    def adapter_id(self) -> str:
        """Return the adapter."""
        return _ADAPTERS[self.options.defensive]

    def filled(self, row: Row, response: str) -> Filled:
        """Return the policy prompt between instruction tags."""
        template = f"[INST] {self.prompt(_PROMPT).strip()} [/INST]"
        return fill(template, {"{question}": row.goal, "{answer}": response})

    def labels(self) -> tuple[list[int], list[int]]:
        """Return the ids that begin 'unsafe' and 'safe', in the forms that the model writes."""
        vocabulary = self.tokenizer.get_vocab()

        def known(*tokens: str) -> list[int]:
            return [vocabulary[token] for token in tokens if token in vocabulary]

        unsafe = known("\u2581unsafe", "un", "Un", "uns", "Uns")
        safe = known("\u2581safe", "safe", "Sa", "S", "s")
        return unsafe or label_ids(self.tokenizer, ["unsafe"]), safe
