"""Erase-and-check: a prompt is declined if a safety filter objects to it or to an erased version.

Source: Kumar et al. 2023, arXiv 2309.02705, Algorithm 1 and sections 3 to 5.
Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field, model_validator

from adversariallm.core.budget import Usage
from adversariallm.core.config import FrozenConfig
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import (
    ChatModel,
    DefenseInfo,
    Needs,
    SafetyJudge,
    Supplies,
    Verdict,
    Wanted,
    WhiteBoxModel,
)
from adversariallm.core.types import Reply
from adversariallm.defenses._kit.defended import Ask, Defended, bare
from adversariallm.defenses._kit.erase import Mode, certified_detection, erased, most_versions
from adversariallm.defenses._kit.replies import WITHHELD, charged, marked, total, withheld
from adversariallm.defenses._kit.requests import Request, split

if TYPE_CHECKING:
    from adversariallm.tokenization.codec import Codec

__all__ = ["INFO", "Config", "certified_detection", "erased", "wrap"]

INFO = DefenseInfo(
    name="erase_and_check",
    summary="a prompt is declined if a filter objects to it or to any erased version of it",
    source="Kumar et al. 2023, arXiv 2309.02705, Algorithm 1",
    reference_code=None,
    passes=Needs.TEXT,
    deviations=(
        "the filter is a judge of judgezoo: on the request, or on how the model itself answers it",
        "units are tokens of the model's own tokenizer, cut without the template around them",
        "only the last user message is erased",
        "all versions are checked at once, after the prompt itself",
    ),
    quick={"depth": 2, "filter_tokens": 2},
)


class Config(FrozenConfig):
    """Options; the only place where their defaults stand."""

    mode: Mode = Field("suffix", description="which units may be erased")
    depth: int = Field(20, ge=1, description="d, most units erased (of each stretch)")
    insertions: int = Field(1, ge=1, le=4, description="k, stretches, for mode=insertion")
    unit: Literal["token", "word"] = Field("token", description="what is erased one by one")
    reads: Literal["answer", "request"] = Field(
        "answer",
        description="what the judge reads: the model's short answer to a version, where a refusal "
        "means harm, or the version itself",
    )
    judge: str = Field("refusal_prefix", description="the safety filter")
    filter_tokens: int = Field(24, ge=1, description="length of the answers that are read")
    max_checks: int = Field(
        2000, ge=1, description="a prompt with more versions is not answered, and not scored"
    )

    @model_validator(mode="after")
    def _readable(self) -> Config:
        if self.reads == "request" and self.judge.startswith("refusal_"):
            raise ValueError(
                f"reads=request with judge={self.judge}, which reads answers; name a judge of "
                "requests, or use reads=answer"
            )
        return self

    def wanted(self) -> Wanted:
        """The judge, and ids where tokens are erased."""
        needs = Needs.TOKENS if self.unit == "token" else Needs.TEXT
        return Wanted(model=needs, judges=(self.judge,))


@dataclass
class Check:
    """One request while it is checked.

    Attributes:
        versions: erased versions of its prompt that have been read.
        objection: the version that the filter objected to.
        error: why a version could not be checked.
        spent: cost of the checks.
        executed: operations that the machine really did for them.
    """

    versions: int = 0
    objection: str | None = None
    error: str | None = None
    spent: list[Usage] = field(default_factory=list)
    executed: int = 0


class Checked(Defended):
    """The model behind a filter that reads erased versions too."""

    config: Config

    def __init__(self, model: ChatModel, config: Config, judge: SafetyJudge) -> None:
        """Ask `judge`."""
        super().__init__(model, INFO, config)
        self._judge = judge

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """The model's answers, withheld where the filter objects."""
        checks = [Check() for _ in requests]
        self._read(requests, checks, first=True)
        open_ = [k for k, c in enumerate(checks) if c.objection is None and c.error is None]
        self._read([requests[k] for k in open_], [checks[k] for k in open_], first=False)
        passed = [c.objection is None and c.error is None for c in checks]
        answers = iter(ask([r for r, ok in zip(requests, passed, strict=True) if ok]))
        return [
            self._reply(check, next(answers) if ok else None)
            for check, ok in zip(checks, passed, strict=True)
        ]

    def _read(self, requests: Sequence[Request], checks: Sequence[Check], *, first: bool) -> None:
        """Have the prompts themselves read, or all their erased versions, in one go."""
        texts = [self._versions(r, c, first) for r, c in zip(requests, checks, strict=True)]
        asked = [
            r.with_prompt(text).stream(INFO.name, "check", k if first else k + 1)
            for r, versions in zip(requests, texts, strict=True)
            for k, text in enumerate(versions)
        ]
        if not asked:
            return
        verdicts, replies = self._verdicts(asked)
        sizes = [len(t) for t in texts]
        rows = zip(checks, texts, split(verdicts, sizes), split(replies, sizes), strict=True)
        for check, versions, found, said in rows:
            self._note(check, versions, found, said)

    def _versions(self, request: Request, check: Check, first: bool) -> list[str]:
        """The prompt itself, or its erased versions."""
        c = self.config
        words = request.prompt.split()
        ids = [] if c.unit == "word" else self._codec.encode(request.prompt)
        if most_versions(len(ids or words), c.mode, c.depth, c.insertions) > c.max_checks:
            check.error = "too_many_checks"
            return []
        if first:
            return [request.prompt]
        if c.unit == "word":
            return [" ".join(v) for v in erased(words, c.mode, c.depth, c.insertions)][1:]
        return self._codec.decode_batch(list(erased(ids, c.mode, c.depth, c.insertions))[1:])

    @property
    def _codec(self) -> Codec:
        return cast("WhiteBoxModel", bare(self.model)).chat.codec

    def _verdicts(self, asked: Sequence[Request]) -> tuple[list[Verdict], list[Reply]]:
        """What the filter says of each version, and the model's answers that it read."""
        if self.config.reads == "request":
            verdicts = self._judge.verdicts([r.conversation for r in asked])
            return verdicts, [Reply("")] * len(asked)
        generation = GenerationConfig(max_new_tokens=self.config.filter_tokens)
        replies = self.model.generate([r.input for r in asked], generation, [r.rng for r in asked])
        read = [
            r.conversation.append("assistant", reply.text)
            for r, reply in zip(asked, replies, strict=True)
        ]
        return self._judge.verdicts(read), replies

    def _note(
        self, check: Check, texts: Sequence[str], found: Sequence[Verdict], said: Sequence[Reply]
    ) -> None:
        check.versions += len(texts)
        for text, verdict, reply in zip(texts, found, said, strict=True):
            check.spent += [verdict.usage, total(reply)]
            check.executed += reply.executed
            error = reply.error or (verdict.error if verdict.score is None else None)
            if error is not None or verdict.score is None:
                check.error = check.error or error or "unscored"
            elif check.objection is None and self._objects(verdict.score):
                check.objection = text

    def _objects(self, score: float) -> bool:
        """A request that is harmful, or an answer that is a refusal."""
        harmful = score >= self._judge.threshold
        return harmful if self.config.reads == "request" else not harmful

    def _reply(self, check: Check, reply: Reply | None) -> Reply:
        """The answer with the cost of the checks, or the one that is given in its place."""
        facts: dict[str, Any] = {"checks": check.versions}
        if reply is not None:
            return marked(charged(reply, check.spent, executed=check.executed), INFO.name, **facts)
        if check.objection is not None:
            instead = withheld(
                INFO.name, WITHHELD, "the filter objects", version=check.objection, **facts
            )
        else:
            instead = withheld(INFO.name, WITHHELD, "not checked", error=check.error, **facts)
        return charged(instead, check.spent, executed=check.executed)


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The model behind the filter."""
    return Checked(model, config, supplies.judges[config.judge])
