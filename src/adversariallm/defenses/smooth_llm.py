"""SmoothLLM: the model answers several randomly changed copies of the prompt, and they vote.

Source: Robey et al. 2023, arXiv 2310.03684, Algorithm 1.
Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import (
    ChatModel,
    DefenseInfo,
    Needs,
    SafetyJudge,
    Supplies,
    Verdict,
    Wanted,
)
from adversariallm.core.types import Reply
from adversariallm.defenses._kit.defended import Ask, Defended
from adversariallm.defenses._kit.perturb import Perturbation, certified_success, perturb
from adversariallm.defenses._kit.replies import charged, chosen, marked
from adversariallm.defenses._kit.requests import Request, split

__all__ = ["INFO", "Config", "certified_success", "wrap"]

INFO = DefenseInfo(
    name="smooth_llm",
    summary="randomly changed copies of the prompt are answered, and they vote",
    source="Robey et al. 2023, arXiv 2310.03684",
    reference_code=None,
    passes=Needs.TEXT,
    rewrites=True,
    deviations=(
        "whether a copy was jailbroken says a judge of judgezoo, by default the refusal prefixes",
        "only the last user message is changed",
        "copies that fail are left out of the vote",
    ),
    quick={"copies": 3},
)


class Config(FrozenConfig):
    """Options; the only place where their defaults stand."""

    perturbation: Perturbation = Field("swap", description="how characters are changed")
    q: float = Field(0.1, gt=0, le=1, description="share of the characters that are changed")
    copies: int = Field(10, ge=1, le=1000, description="N, copies that are answered")
    gamma: float = Field(
        0.5, ge=0, lt=1, description="share of jailbroken copies above which the vote says so"
    )
    judge: str = Field("refusal_prefix", description="tells whether a copy was jailbroken")

    def wanted(self) -> Wanted:
        """The judge."""
        return Wanted(judges=(self.judge,))


class Smoothed(Defended):
    """The model behind perturbed copies and a vote."""

    config: Config

    def __init__(self, model: ChatModel, config: Config, judge: SafetyJudge) -> None:
        """Ask `judge` about each copy's answer."""
        super().__init__(model, INFO, config)
        self._judge = judge

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """For each request one of its copies' answers, of those that agree with the vote."""
        copies = [self._copy(r, k) for r in requests for k in range(self.config.copies)]
        sizes = [self.config.copies] * len(requests)
        replies = ask(copies)
        read = [
            copy.conversation.append("assistant", reply.text)
            for copy, reply in zip(copies, replies, strict=True)
        ]
        verdicts = self._judge.verdicts(read)
        groups = zip(requests, split(replies, sizes), split(verdicts, sizes), strict=True)
        return [self._vote(request, said, found) for request, said, found in groups]

    def _copy(self, request: Request, k: int) -> Request:
        copy = request.stream(INFO.name, "copy", k)
        draw = copy.rng.child("perturb").python()
        return copy.with_prompt(perturb(copy.prompt, self.config.perturbation, self.config.q, draw))

    def _vote(
        self, request: Request, replies: Sequence[Reply], verdicts: Sequence[Verdict]
    ) -> Reply:
        """One answer among those that agree with the majority, drawn from the request's stream."""
        spent = [v.usage for v in verdicts]
        read = {
            k: v.score >= self._judge.threshold
            for k, v in enumerate(verdicts)
            if v.score is not None and replies[k].error is None
        }
        if not read:
            return charged(chosen(replies[0], replies[1:]), spent)
        jailbroken = sum(read.values()) > self.config.gamma * len(read)
        agreeing = [k for k, yes in read.items() if yes == jailbroken]
        draw = request.rng.child(INFO.name, "choice").python()
        pick = draw.choice(agreeing)
        kept = chosen(replies[pick], [r for k, r in enumerate(replies) if k != pick])
        facts = {"copies": len(read), "jailbroken": sum(read.values()), "copy": pick}
        return marked(charged(kept, spent), INFO.name, **facts)


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The model behind the vote."""
    return Smoothed(model, config, supplies.judges[config.judge])
