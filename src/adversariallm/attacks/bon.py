"""Best-of-N: ask many random variations of the request, one sampled answer each.

Source: Hughes et al. 2024, "Best-of-N Jailbreaking" (arXiv 2412.03556); jplhughes/bon-jailbreaking.
The samples are the attack: optimization costs nothing, every answer is sampling cost. The paper's
false-positive rules belong to the judge (`best_of_n` in judgezoo).

Deviations from the reference code: white space and non-ASCII letters are kept
(`augmentation=reference` restores the published function); every behavior has its own streams; only
the last user message is augmented; there is no early stop unless a stopping rule is set. Step 0 is
the unchanged request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from adversariallm.attacks._kit.augment import Augmented, augment, augment_as_published
from adversariallm.attacks._kit.diagnosis import diagnosed_loss
from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.types import Candidate, Task

INFO = AttackInfo(
    name="bon",
    summary="many randomly augmented requests, one sampled answer each",
    source="Hughes et al. 2024, arXiv 2412.03556",
    reference_code="jplhughes/bon-jailbreaking",
    needs=Needs.TEXT,
    modality="prompt",
    cost="sampling",
    target="optional",
    generation={"temperature": 1.0, "max_new_tokens": 300},
    deviations=(
        "white space and non-ASCII letters are kept",
        "every behavior has its own random streams",
    ),
    quick={"num_steps": 3},
)


class Config(FrozenConfig):
    """Options; defaults are those of the paper."""

    num_steps: int = Field(
        10_000, ge=0, description="augmented requests (N)", json_schema_extra={"extends": True}
    )
    sigma: float = Field(0.4, ge=0, le=1, description="strength of the augmentations")
    word_scrambling: bool = Field(True, description="shuffle inner characters of words")
    random_capitalization: bool = Field(True, description="flip the case of letters")
    ascii_perturbation: bool = Field(True, description="move characters by one code point")
    augmentation: Literal["fixed", "reference"] = Field(
        "fixed", description="ours, or the published function with its faults"
    )
    reference_seed: int = Field(
        0, ge=0, description="first seed of augmentation=reference, the same for every behavior"
    )
    log_loss: bool = Field(
        False, description="record the target loss, booked as diagnosis; white-box models only"
    )


class Attack:
    """Random augmentations of the last user message."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the request, then one augmentation per step."""
        behavior, log_loss = task.behavior, self.config.log_loss
        clean = behavior.conversation
        if ctx.state is None:
            yield Candidate.of(clean, diagnosed_loss(ctx, clean, behavior.target, log_loss))
        turn = clean.last_user
        first = 1 if ctx.state is None else ctx.state.step + 1
        for step in range(first, self.config.num_steps + 1):
            found = self._augment(clean[turn].content, step, ctx)
            talk = clean.with_content(turn, found.text)
            counts = {"words": found.words, "case": found.case, "chars": found.chars}
            note = {} if self.config.augmentation == "reference" else {"changed": counts}
            loss = diagnosed_loss(ctx, talk, behavior.target, log_loss)
            yield Candidate.of(talk, loss, note=note)

    def _augment(self, text: str, step: int, ctx: Context) -> Augmented:
        c = self.config
        if c.augmentation == "reference":
            return augment_as_published(text, c.sigma, c.reference_seed + step - 1)
        return augment(
            text,
            c.sigma,
            ctx.rng.child("augment", step),
            scramble=c.word_scrambling,
            capitalize=c.random_capitalization,
            noise=c.ascii_perturbation,
        )
