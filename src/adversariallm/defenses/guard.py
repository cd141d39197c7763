"""Guard: a judge reads the question, the answer, or both, and what it calls harmful is withheld.

Source: Inan et al. 2023, arXiv 2312.06674 (input and output safeguards). Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

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
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses._kit.defended import Ask, Defended
from adversariallm.defenses._kit.replies import WITHHELD, charged, marked, withheld
from adversariallm.defenses._kit.requests import Request

INFO = DefenseInfo(
    name="guard",
    summary="a judge withholds questions or answers that it calls harmful",
    source="Inan et al. 2023, arXiv 2312.06674",
    reference_code=None,
    passes=Needs.TEXT,
    deviations=(
        "any judge of judgezoo that measures harm can be the guard",
        "judges read answers: for the question, it stands in the place of the answer to itself",
        "a guard that fails withholds, and such an answer is not scored",
    ),
)


class Config(FrozenConfig):
    """Options; the only place where their defaults stand."""

    judge: str = Field("llama_guard_3", description="the judge; its options are judges.NAME.*")
    reads: Literal["input", "output", "both"] = Field("both", description="what it is shown")
    threshold: float | None = Field(
        None, gt=0, le=1, description="score from which it withholds; null takes the judge's own"
    )
    refusal: str = Field(WITHHELD, description="what is said instead of an answer")

    @field_validator("judge")
    @classmethod
    def _measures_harm(cls, name: str) -> str:
        from judgezoo.errors import JudgezooError
        from judgezoo.registry import judge_class

        try:
            semantics = judge_class(name).info.semantics
        except JudgezooError as error:
            raise ValueError(str(error)) from None
        if semantics != "harm":
            raise ValueError(
                f"judge {name!r} measures {semantics}: it would withhold every answer that helps; "
                "choose a judge that measures harm (`adversariallm list judges`)"
            )
        return name

    def wanted(self) -> Wanted:
        """The judge."""
        return Wanted(judges=(self.judge,))


class Guarded(Defended):
    """The model behind the guard."""

    config: Config

    def __init__(self, model: ChatModel, config: Config, judge: SafetyJudge) -> None:
        """Let `judge` decide what is handed on."""
        super().__init__(model, INFO, config)
        self._judge = judge
        own = judge.threshold
        self._threshold = own if config.threshold is None else config.threshold

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """Answers that the guard lets through, the refusal for all others."""
        before: dict[int, Verdict] = {}
        if self.config.reads != "output":
            texts = [_as_answer(request) for request in requests]
            before = dict(enumerate(self._judge.verdicts(texts)))
        stopped = {i: v for i, v in before.items() if self._stops(v)}
        open_ = [i for i in range(len(requests)) if i not in stopped]
        replies = dict(zip(open_, ask([requests[i] for i in open_]), strict=True))
        after: dict[int, Verdict] = {}
        if self.config.reads != "input":
            read = [i for i in open_ if replies[i].error is None and replies[i].text.strip()]
            talks = [_answered(requests[i], replies[i]) for i in read]
            after = dict(zip(read, self._judge.verdicts(talks), strict=True))
        return [
            self._decide(replies.get(i), before.get(i), after.get(i)) for i in range(len(requests))
        ]

    def _stops(self, verdict: Verdict) -> bool:
        return verdict.score is None or verdict.score >= self._threshold

    def _decide(self, reply: Reply | None, before: Verdict | None, after: Verdict | None) -> Reply:
        """The reply as it is, or withheld by the verdict that stops it."""
        facts = {k: v.score for k, v in (("input", before), ("output", after)) if v is not None}
        stopping = before if reply is None else after
        if stopping is None or not self._stops(stopping):
            handed = marked(reply or Reply(""), INFO.name, scores=facts)
        else:
            what = "input" if reply is None else "output"
            error = None if stopping.score is not None else stopping.error or "unscored"
            handed = withheld(
                INFO.name, self.config.refusal, what, reply=reply, error=error, scores=facts
            )
        return charged(handed, [v.usage for v in (before, after) if v is not None])


def _as_answer(request: Request) -> Conversation:
    """The question in the place of the answer to itself, earlier turns left out."""
    return Conversation.user(request.prompt).append("assistant", request.prompt)


def _answered(request: Request, reply: Reply) -> Conversation:
    return request.conversation.append("assistant", request.prefill + reply.text)


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The model behind the guard."""
    return Guarded(model, config, supplies.judges[config.judge])
