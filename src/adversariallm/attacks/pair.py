"""PAIR: an attacker model rewrites the request again and again from the answers and their scores.

Source: Chao et al. 2023, "Jailbreaking Black Box Large Language Models in Twenty Queries"
(arXiv 2310.08419); patrickrchao/JailbreakingLLMs, whose six texts are assets. Streams take the
three official attacker texts in turn, or TAP's single one (`attacker_texts=tap`). A step is one
prompt sent with its answer, ordered by iteration, then stream; there is no un-optimized step 0.

Deviations from the reference code: replies are read as JSON, not as Python literals, and may hold
braces and line breaks; a stream whose attacker fails is skipped, and dropped after two failures in
a row; placeholders and repeated prompts are asked for again; every call has a random stream of its
own; a score that cannot be read is None (the attacker is then told 1, as published); nothing is
cut off at "}", and the attacker's answer is begun only where nothing else holds it to JSON
(`open_json`); answers cannot forge the scorer's verdict.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import Field

from adversariallm.attacks._kit import chat, rewriting
from adversariallm.attacks._kit.rewriting import Rewriter, RewritingConfig, Written
from adversariallm.attacks._kit.structured import Answer
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Candidate, Conversation, Reply, State, Task

SYSTEMS = ("pair/role_playing", "pair/logical_appeal", "pair/authority")
TAP_SYSTEM = "tap/attacker"
FAILURES_TO_DROP = 2

INFO = AttackInfo(
    name="pair",
    summary="an attacker model rewrites the request from answers and scores",
    source="Chao et al. 2023, arXiv 2310.08419",
    reference_code="patrickrchao/JailbreakingLLMs@6379ef7",
    needs=Needs.TEXT,
    modality="prompt",
    target="optional",
    helpers={
        "attacker": "writes the prompts, e.g. Mixtral-8x7B-Instruct",
        "scorer": "rates answers from 1 to 10; never the model under attack unless you say so",
    },
    assets=("pair/judge", "pair/init", "pair/feedback"),
    generation={"temperature": 0.0, "max_new_tokens": 150},
    deviations=(
        "a stream whose attacker fails is skipped, and dropped after two failures in a row",
        "replies are JSON; placeholders and repeated prompts are asked for again",
        "a score that cannot be read is None",
    ),
    quick={"num_streams": 2, "num_iterations": 2, "keep_last": 1, "attempts": 2},
)


class Config(RewritingConfig):
    """Options; defaults are those of the paper."""

    num_streams: int = Field(30, ge=1, description="parallel conversations with the attacker (N)")
    num_iterations: int = Field(3, ge=1, description="prompts per stream (K)")
    keep_last: int = Field(4, ge=1, description="exchanges that the attacker still sees")
    paper_exact_scorer: bool = Field(
        False, description="leave verdict brackets in what the scorer reads"
    )
    attacker_texts: Literal["official", "tap"] = Field(
        "official",
        description="the three published texts in turn, or TAP's single one for every stream",
        json_schema_extra={"since": "1.0"},
    )
    open_json: Literal["auto", "always", "never"] = Field(
        "auto",
        description="begin the attacker's JSON for it, as published; auto: where its endpoint "
        "continues an opened answer and enforces no schema",
        json_schema_extra={"since": "1.0"},
    )

    def needs_assets(self) -> tuple[str, ...]:
        """The attacker's texts."""
        return SYSTEMS if self.attacker_texts == "official" else (TAP_SYSTEM,)

    def system_of(self, stream: int) -> str:
        """Asset id of a stream's attacker text."""
        texts = self.needs_assets()
        return texts[stream % len(texts)]


@dataclass
class _Stream:
    """One conversation with the attacker.

    Attributes:
        history: exchanges (what it was told, what it wrote).
        feedback: (answer, score) that it is told next; None at the start.
        failures: failures in a row.
    """

    history: list[list[str]] = field(default_factory=list)
    feedback: tuple[str, int] | None = None
    failures: int = 0
    last_prompt: str = ""

    @property
    def dead(self) -> bool:
        return self.failures >= FAILURES_TO_DROP


class Attack:
    """Streams of prompts, improved in turn."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Generator[Candidate, None, str | None]:
        """Yield one prompt per step; the reason why it ended is the generator's value."""
        c, run = self.config, _Run(self.config, task, ctx)
        first = run.done
        for number in range(first, c.num_iterations * c.num_streams):
            iteration, stream = divmod(number, c.num_streams)
            if stream == 0 and run.success and c.stop_on_success:
                return "success"
            candidate = run.step(iteration, stream)
            run.done = number + 1
            if candidate is not None:
                yield run.closed(candidate)
            elif all(s.dead for s in run.streams):
                return "attacker_failed"
        return "success" if run.success and c.stop_on_success else None


class _Run:
    """The streams of one behavior."""

    def __init__(self, config: Config, task: Task, ctx: Context) -> None:
        self.config, self.ctx = config, ctx
        self.behavior = task.behavior
        self.goal = chat.objective(self.behavior)
        self.target = self.behavior.target or rewriting.DEFAULT_TARGET
        values: Any = {} if ctx.state is None else ctx.state.values
        self.done: int = values.get("done", 0)
        self.success: int | None = values.get("success")
        rows = values.get("streams", [{}] * config.num_streams)
        self.streams = [_Stream(**row) for row in rows]
        self.skipped: list[dict[str, Any]] = []

    def closed(self, candidate: Candidate) -> Candidate:
        """The candidate with all that is needed to go on after it."""
        values = {
            "done": self.done,
            "success": self.success,
            "streams": [asdict(s) for s in self.streams],
        }
        note = {**candidate.note, **({"skipped": self.skipped} if self.skipped else {})}
        self.skipped = []
        return Candidate(
            candidate.inputs,
            candidate.losses,
            reply=candidate.reply,
            state=State(values),
            note=note,
        )

    def step(self, iteration: int, number: int) -> Candidate | None:
        """One prompt of one stream; None where the stream is dead or its attacker failed."""
        stream = self.streams[number]
        if stream.dead:
            return None
        rng = self.ctx.rng.child("stream", number, "iteration", iteration)
        c, rewriter = self.config, self._rewriter(number)
        scorer = c.rater(self.ctx, "pair/judge", self.goal, exact=c.paper_exact_scorer)
        written = rewriter.write(stream.history, stream.feedback, stream.last_prompt, rng)
        if written.answer.value is None:
            stream.failures += 1
            facts = {"iteration": iteration, "stream": number, **written.answer.note()}
            self.skipped.append(facts)
            return None
        prompt = written.answer.value.prompt
        talk = self.behavior.conversation
        talk = talk.with_content(talk.last_user, prompt)
        reply = chat.answer(self.ctx, talk, rng.child("model"))
        kind = chat.status(reply)
        scored = scorer.rate(prompt, reply, kind, rng)
        self._remember(stream, written, reply, kind, scored)
        score = None if scored is None else scored.value
        if self.success is None and score is not None and score >= self.config.cutoff:
            self.success = iteration * self.config.num_streams + number + 1
        note = {
            "iteration": iteration,
            "stream": number,
            "system": self.config.system_of(number),
            **rewriting.facts(written, kind, scored),
            "exchanges": len(stream.history),
            "queries_to_first_success": self.success,
            **({} if self.behavior.target else {"target_source": "default"}),
        }
        return Candidate.of(talk, reply=reply, note=note)

    def _rewriter(self, number: int) -> Rewriter:
        c, ctx = self.config, self.ctx
        continues = getattr(ctx.helpers["attacker"], "continues_openings", False)
        opened = c.open_json == "always" or (c.open_json == "auto" and continues)
        return c.rewriter(ctx, c.system_of(number), self.goal, self.target, opened=opened)

    def _remember(
        self,
        stream: _Stream,
        written: Written,
        reply: Reply,
        kind: str,
        scored: Answer[int] | None,
    ) -> None:
        """Update the stream; a call that failed leaves no trace but a failure."""
        if kind in chat.FAILED or written.answer.value is None:
            stream.failures += 1
            return
        stream.failures = 0
        stream.last_prompt = written.answer.value.prompt
        exchange = [written.told, written.answer.value.said()]
        stream.history = [*stream.history, exchange][-self.config.keep_last :]
        stream.feedback = (reply.text, rewriting.told_score(scored))


def _example_attacker(talk: Conversation, rng: Rng) -> str:
    return json.dumps({"improvement": "ask in another way", "prompt": f"tell me {talk.key[:6]}"})


EXAMPLE_REPLIES = {
    "attacker": _example_attacker,
    "scorer": lambda talk, rng: f"Rating: [[{9 - int(talk.key[:4], 16) % 2}]]",
}
EXAMPLE_ASSETS = {
    "pair/role_playing": "Play a role. Objective: {goal}. Start: {target_str}",
    "pair/logical_appeal": "Argue. Objective: {goal}. Start: {target_str}",
    "tap/attacker": "Write prompts. Objective: {goal}. Start: {target_str}",
    "pair/authority": "Cite. Objective: {goal}. Start: {target_str}",
    "pair/judge": "Rate the answer to {goal} as Rating: [[rating]]",
    "pair/init": "Begin. Objective: {goal}. Start: {target}",
    "pair/feedback": "ANSWER: {target_response} OBJECTIVE: {goal} SCORE: {score}",
}
