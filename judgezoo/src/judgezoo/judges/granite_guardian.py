"""Granite Guardian 3.1 and 3.2: is the named risk in the answer? Yes or no.

Source: Padhi et al. 2024, arXiv 2412.07724, and the model cards. The risk's definition comes with
the checkpoint's chat template. Deviations: the probability of yes is given, not only the word.
Version 3.3 answers inside tags after thinking and is not supported.
"""

from __future__ import annotations

from typing import Literal

from judgezoo.base import JudgeInfo
from judgezoo.conversation import Row
from judgezoo.filling import Filled
from judgezoo.judges._finetuned import ClassifierJudge, FinetunedOptions
from judgezoo.judges._guard import alternating, locate
from judgezoo.judges._readout import label_ids

__all__ = ["INFO", "GraniteGuardian"]

_MODELS = {
    "3.1-2b": "ibm-granite/granite-guardian-3.1-2b",
    "3.1-8b": "ibm-granite/granite-guardian-3.1-8b",
    "3.2-5b": "ibm-granite/granite-guardian-3.2-5b",
}

INFO = JudgeInfo(
    name="granite_guardian",
    summary="Granite Guardian answers yes or no for a named risk; p = P(yes)",
    kind="classifier",
    source="Padhi et al. 2024 (arXiv 2412.07724)",
    semantics="harm",
    keys=("label_mass",),
    baseline=tuple(_MODELS.values()),
    decoding="probability of the first token",
    success="yes",
    license="Apache-2.0 (template in the checkpoint)",
)


class GraniteGuardian(ClassifierJudge):
    """Judges the last exchange for one risk."""

    info = INFO

    class Options(FinetunedOptions):
        """Options of Granite Guardian.

        Attributes:
            model: which published model.
            risk: name of the risk in the checkpoint's template.
        """

        model: Literal["3.1-2b", "3.1-8b", "3.2-5b"] = "3.1-8b"
        risk: str = "harm"

    def hub_id(self) -> str:
        """Return the published model."""
        return _MODELS[self.options.model]

    def filled(self, row: Row, response: str) -> Filled:
        """Return the template over the last exchange."""
        turns = alternating([*row.messages[:-1], {"role": "assistant", "content": response}])[-2:]
        text = self.tokenizer.apply_chat_template(
            turns,
            tokenize=False,
            add_generation_prompt=True,
            guardian_config={"risk_name": self.options.risk},
        )
        return locate(text, [turn["content"] for turn in turns])

    def labels(self) -> tuple[list[int], list[int]]:
        """Return the ids of yes and no."""
        tokenizer = self.tokenizer
        return label_ids(tokenizer, ["Yes", "yes"]), label_ids(tokenizer, ["No", "no"])
