"""Backtranslation: from the answer another model guesses the request, and the model answers that.

Source: Wang et al. 2024, arXiv 2402.16459, section 3. What an attacker hides in the request does
not show in the answer, so a refusal of the guessed request takes the answer back.
The instruction is ours. Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from pydantic import Field

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
from adversariallm.core.types import Conversation, Reply
from adversariallm.defenses._kit.defended import Ask, Defended, bare
from adversariallm.defenses._kit.replies import WITHHELD, charged, marked, total, withheld
from adversariallm.defenses._kit.requests import Request

INFO = DefenseInfo(
    name="backtranslation",
    summary="a request guessed from the answer is asked too; a refusal of it takes the answer back",
    source="Wang et al. 2024, arXiv 2402.16459, section 3; the instruction is ours",
    reference_code=None,
    passes=Needs.TEXT,
    helpers={"defense": "guesses the request from the answer"},
    deviations=(
        "whether an answer is a refusal says a judge of judgezoo, by default the refusal prefixes",
        "the guessed request is asked alone, with the conversation's system prompt only",
        "a guess that fails withholds the answer, marked and unscored",
    ),
    quick={"max_new_tokens": 8, "min_log_likelihood": None},
)

INSTRUCTION = (
    "Below is what an assistant answered. Guess what it was asked, in one sentence that states the "
    "request plainly. Write the request alone.\n\nThe answer:\n"
)


class Config(FrozenConfig):
    """Options; the only place where their defaults stand."""

    instruction: str = Field(INSTRUCTION, description="stands before the answer")
    max_new_tokens: int = Field(64, ge=1, description="longest guess, in tokens")
    min_log_likelihood: float | None = Field(
        -2.0,
        le=0,
        description="where the answer, given the guess, has a lower mean log-probability per "
        "token, the guess is not used; null uses every guess, and needs no logits",
    )
    judge: str = Field("refusal_prefix", description="tells whether an answer complies")

    def wanted(self) -> Wanted:
        """The judge, and logits for the likelihood."""
        needs = Needs.TEXT if self.min_log_likelihood is None else Needs.LOGITS
        return Wanted(model=needs, judges=(self.judge,))


@dataclass
class Case:
    """One request on its way through the defense; a case that is `settled` goes no further."""

    request: Request
    reply: Reply
    guess: str = ""
    settled: Reply | None = None
    spent: list[Usage] = field(default_factory=list)
    executed: int = 0

    def withhold(self, reason: str, error: str | None = None, **facts: object) -> None:
        """End with the answer taken back."""
        self.settled = withheld(INFO.name, WITHHELD, reason, reply=self.reply, error=error, **facts)

    def keep(self, reason: str, **facts: object) -> None:
        """End with the answer as it is."""
        self.settled = marked(self.reply, INFO.name, kept=reason, **facts)


class Backtranslated(Defended):
    """The model behind a guess of what its answers answer."""

    config: Config

    def __init__(
        self, model: ChatModel, config: Config, guesser: ChatModel, judge: SafetyJudge
    ) -> None:
        """Have `guesser` guess, and `judge` tell refusals."""
        super().__init__(model, INFO, config)
        self._guesser = guesser
        self._judge = judge

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """The model's answers, taken back where the guessed request is refused."""
        cases = [Case(r, reply) for r, reply in zip(requests, ask(requests), strict=True)]
        self._look_for_refusals(cases)
        self._guess(_open(cases))
        if self.config.min_log_likelihood is not None:
            self._weigh(_open(cases), self.config.min_log_likelihood)
        self._ask_again(_open(cases), ask)
        return [
            charged(case.settled or case.reply, case.spent, executed=case.executed)
            for case in cases
        ]

    def _look_for_refusals(self, cases: Sequence[Case]) -> None:
        """Settle failed answers, empty ones and refusals: there is nothing to guess."""
        for case in cases:
            if case.reply.error is not None:
                case.settled = case.reply
            elif not case.reply.text.strip():
                case.keep("empty")
        rest = _open(cases)
        for case, verdict in zip(rest, self._verdicts(rest, rest), strict=True):
            if verdict.score is None:
                case.withhold("the answer could not be read", verdict.error or "unscored")
            elif verdict.score < self._judge.threshold:
                case.keep("refusal")

    def _verdicts(self, cases: Sequence[Case], said: Sequence[Case]) -> list[Verdict]:
        """Whether the replies of `said` comply; booked on the cases."""
        verdicts = self._judge.verdicts(
            [c.request.conversation.append("assistant", c.reply.text) for c in said]
        )
        for case, verdict in zip(cases, verdicts, strict=True):
            case.spent.append(verdict.usage)
        return verdicts

    def _guess(self, cases: Sequence[Case]) -> None:
        """Have the request behind each answer guessed."""
        if not cases:
            return
        generation = GenerationConfig(max_new_tokens=self.config.max_new_tokens)
        asked = [Conversation.user(self.config.instruction + c.reply.text) for c in cases]
        streams = [c.request.rng.child(INFO.name, "guess") for c in cases]
        for case, found in zip(
            cases, self._guesser.generate(asked, generation, streams), strict=True
        ):
            case.spent.append(total(found))
            case.executed += found.executed
            case.guess = found.text.strip()
            if found.error is not None or not case.guess:
                case.withhold("no guess", found.error or "empty")

    def _weigh(self, cases: Sequence[Case], least: float) -> None:
        """Settle cases whose guess does not explain the answer."""
        model = cast("WhiteBoxModel", bare(self.model))
        rows = []
        for case in cases:
            talk = Conversation.user(case.guess)
            cut = model.chat.segments(talk, target=case.reply.text)
            if len(cut.ids) > model.context_length:
                case.withhold("the guess could not be weighed", "context_length")
            elif cut.target_ids:
                rows.append((case, cut))
        if not rows:
            return
        found = model.losses([c.input_ids for _, c in rows], [c.target_ids for _, c in rows])
        for k, (case, _) in enumerate(rows):
            case.spent.append(found.work.rows[k])
            likelihood = -float(found.per_token[k].mean())
            if not likelihood >= least:
                case.keep("unlikely guess", guess=case.guess, log_likelihood=round(likelihood, 6))

    def _ask_again(self, cases: Sequence[Case], ask: Ask) -> None:
        """Ask the guessed requests; a refusal takes the answer back."""
        again = [replace(c, request=self._guessed(c)) for c in cases]
        answers = ask([c.request for c in again]) if again else []
        for case, one, answer in zip(cases, again, answers, strict=True):
            one.reply = answer
            case.spent.append(total(answer))
            case.executed += answer.executed
            if answer.error is not None:
                case.withhold("the guess was not answered", answer.error, guess=case.guess)
        rest = [k for k, case in enumerate(cases) if case.settled is None]
        kept, said = [cases[k] for k in rest], [again[k] for k in rest]
        for case, verdict in zip(kept, self._verdicts(kept, said) if kept else [], strict=True):
            if verdict.score is None:
                case.withhold("the second answer could not be read", verdict.error or "unscored")
            elif verdict.score < self._judge.threshold:
                case.withhold("the guessed request is refused", guess=case.guess)
            else:
                case.keep("the guessed request is answered", guess=case.guess)

    @staticmethod
    def _guessed(case: Case) -> Request:
        talk = case.request.conversation
        system = [m for m in talk.messages[:1] if m.role == "system"]
        guessed = Conversation((*system, *Conversation.user(case.guess).messages))
        stream = case.request.rng.child(INFO.name, "again")
        return Request(guessed, stream)


def _open(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.settled is None]


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The model behind the guess."""
    return Backtranslated(model, config, supplies.helpers["defense"], supplies.judges[config.judge])
