"""Prefilling: put words into the model's mouth and let it go on from there.

Source: the prefilling attack as evaluated in Andriushchenko et al. 2024 (arXiv 2404.02151) and the
AdversariaLLM toolbox. The completion is the continuation only; judges read prefill and
continuation together, which the record says.

Deviations from the reference code: prefill and continuation are decoded jointly, so that no space
is lost at the seam; the prefill is never followed by an end-of-turn token.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, field_validator

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.types import Candidate, ModelInput, Task

INFO = AttackInfo(
    name="prefilling",
    summary="the answer is begun with the target, the model continues",
    source="arXiv 2404.02151; AdversariaLLM toolbox",
    reference_code="LLM-QC/AdversariaLLM@9fe870b",
    needs=Needs.TEXT | Needs.TOKENS,
    modality="prefill",
    cost="sampling",
    target="optional",
    judged_with_prefill=True,
    deviations=("prefill and continuation are decoded jointly",),
)


class Config(FrozenConfig):
    """Options."""

    prefill: str | None = Field(None, description="what the answer begins with; null: the target")

    @field_validator("prefill")
    @classmethod
    def _not_empty(cls, text: str | None) -> str | None:
        if text == "":
            raise ValueError(
                "the prefill is empty: give the text that the answer begins with, or null for the "
                "behavior's target"
            )
        return text


class Attack:
    """One input: the conversation with an answer begun."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Step 0 is all there is."""
        if ctx.state is not None:
            return
        behavior = task.behavior
        prefill = behavior.target if self.config.prefill is None else self.config.prefill
        if not prefill:
            raise NeedsError(
                f"behavior {behavior.id!r} has no target to begin the answer with; "
                "set attacks.prefilling.prefill"
            )
        yield Candidate.of(ModelInput(behavior.conversation, prefill=prefill))
