"""TAP: a tree of prompts; every leaf is rewritten several ways, the worse ones are pruned.

Source: Mehrotra et al. 2023, "Tree of Attacks" (arXiv 2312.02119); RICommunity/TAP, whose texts are
assets as garak 0.17.1 publishes them, with PAIR's first message and feedback. A step is one prompt
sent with its answer, level by level; there is no un-optimized step 0. Attacker and on-topic calls
of a level are booked on the level's first step.

Deviations from the reference code: replies are read as JSON; a child whose attacker fails is
dropped and the others keep their places; an on-topic verdict that cannot be read keeps the child
and a score that cannot be read is None, the least when pruning; answers cannot forge verdicts;
pruned children never come back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import Field

from adversariallm.attacks._kit import chat, rewriting
from adversariallm.attacks._kit.rewriting import LOWEST, RewritingConfig
from adversariallm.attacks._kit.structured import Answer, UnreadableError, ask
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Candidate, Conversation, State, Task

ON_TOPIC = re.compile(r"\[\[\s*(YES|NO)\s*\]\]", re.IGNORECASE)

INFO = AttackInfo(
    name="tap",
    summary="a tree of rewritten prompts, pruned by topic and score",
    source="Mehrotra et al. 2023, arXiv 2312.02119",
    reference_code="RICommunity/TAP; garak 0.17.1 resources/tap",
    needs=Needs.TEXT,
    modality="prompt",
    target="optional",
    helpers={
        "attacker": "writes the prompts",
        "scorer": "rates answers from 1 to 10 and says whether a prompt is on topic",
    },
    assets=("tap/attacker", "tap/judge", "tap/on_topic", "pair/init", "pair/feedback"),
    generation={"temperature": 0.0, "max_new_tokens": 150},
    deviations=(
        "a verdict that cannot be read keeps the prompt; a score that cannot be read is None",
        "replies are JSON; placeholders and repeated prompts are asked for again",
    ),
    quick={"depth": 2, "width": 2, "branching": 2, "attempts": 2},
)


class Config(RewritingConfig):
    """Options; defaults are those of the paper."""

    depth: int = Field(10, ge=1, description="levels of the tree (d)")
    width: int = Field(10, ge=1, description="prompts kept on each level (w)")
    branching: int = Field(4, ge=1, description="rewritings of each leaf (b)")
    keep_last: int = Field(3, ge=1, description="exchanges that the attacker still sees")
    on_topic: bool = Field(True, description="prune prompts that ask for something else")


@dataclass
class _Node:
    """A prompt in the tree with the conversation that led to it.

    Attributes:
        name: where it stands: the branch taken at every level.
        history: exchanges with the attacker that led here, this prompt's own included.
        feedback: its answer and score, None before it is sent.
        note: facts of the step that sends it.
    """

    name: list[int] = field(default_factory=list)
    prompt: str = ""
    history: list[list[str]] = field(default_factory=list)
    feedback: tuple[str, int] | None = None
    note: dict[str, Any] = field(default_factory=dict)


class Attack:
    """Branch, prune by topic, send, prune by score."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Generator[Candidate, None, str | None]:
        """Yield one prompt per step; the reason why it ended is the generator's value."""
        tree = _Tree(self.config, task, ctx)
        while True:
            if not tree.waiting:
                if tree.success and self.config.stop_on_success:
                    return "success"
                if tree.level >= self.config.depth:
                    return None
                tree.grow()
                if not tree.waiting:
                    return "nothing_left"
            yield tree.send()


class _Tree:
    """The leaves of one behavior's tree and what waits to be sent."""

    def __init__(self, config: Config, task: Task, ctx: Context) -> None:
        self.config, self.ctx = config, ctx
        self.behavior = task.behavior
        goal = chat.objective(self.behavior)
        target = self.behavior.target or rewriting.DEFAULT_TARGET
        self.rewriter = config.rewriter(ctx, "tap/attacker", goal, target)
        self.scorer = config.rater(ctx, "tap/judge", goal)
        self.topic = chat.fill(ctx.assets["tap/on_topic"], goal=goal)
        values: Any = {} if ctx.state is None else ctx.state.values
        self.level: int = values.get("level", 0)
        self.success: bool = values.get("success", False)
        self.leaves = [_Node(**row) for row in values.get("leaves", [{}])]
        self.waiting = [_Node(**row) for row in values.get("waiting", [])]
        self.dropped: list[dict[str, Any]] = []

    def grow(self) -> None:
        """The next level: rewrite every leaf, drop what is off topic, keep at most the width."""
        best = sorted(range(len(self.leaves)), key=self._worst_first, reverse=True)
        parents = [self.leaves[i] for i in best[: self.config.width]]
        self.level += 1
        rng = self.ctx.rng.child("level", self.level)
        children: list[_Node] = []
        for parent in parents:
            for branch in range(self.config.branching):
                child = self._child(parent, branch, rng)
                if child is not None:
                    children.append(child)
        order = list(range(len(children)))
        rng.child("width").python().shuffle(order)
        kept = sorted(order[: self.config.width])
        self._drop("width", [children[i] for i in sorted(order[self.config.width :])])
        self.waiting, self.leaves = [children[i] for i in kept], []

    def _worst_first(self, index: int) -> tuple[int, float]:
        """Sorts leaves by score, ties at random."""
        feedback = self.leaves[index].feedback
        score = LOWEST if feedback is None else feedback[1]
        return score, self.ctx.rng.child("tie", self.level).uniform(index)

    def _child(self, parent: _Node, branch: int, rng: Rng) -> _Node | None:
        """One rewriting of a leaf that is on topic; None where there is none."""
        name = [*parent.name, branch]
        rng = rng.child(*name)
        written = self.rewriter.write(parent.history, parent.feedback, parent.prompt, rng)
        value = written.answer.value
        if value is None:
            self.dropped.append({"node": name, "why": "attacker", **written.answer.note()})
            return None
        topic = self._topic(value.prompt, rng) if self.config.on_topic else None
        note: dict[str, Any] = {**rewriting.facts(written, "", None)}
        note |= {"on_topic": None if topic is None else topic.value}
        exchange = [written.told, value.said()]
        history = [*parent.history, exchange][-self.config.keep_last :]
        child = _Node(name, value.prompt, history, None, note)
        if topic is not None and topic.value is False:
            self._drop("off_topic", [child])
            return None
        return child

    def _drop(self, why: str, nodes: list[_Node]) -> None:
        self.dropped += [{"node": n.name, "why": why, "prompt": n.prompt} for n in nodes]

    def _topic(self, prompt: str, rng: Rng) -> Answer[bool]:
        return ask(
            self.ctx.helpers["scorer"],
            chat.exchange(self.topic, f"[PROMPT BEGIN]\n{chat.defused(prompt)}\n[PROMPT END]"),
            _read_topic,
            self.config.scorer.generation(),
            rng.child("on_topic"),
            attempts=self.config.scorer_attempts,
        )

    def send(self) -> Candidate:
        """Send the next prompt of this level and score its answer."""
        node, self.waiting = self.waiting[0], self.waiting[1:]
        rng = self.ctx.rng.child("level", self.level, *node.name)
        talk = self.behavior.conversation
        talk = talk.with_content(talk.last_user, node.prompt)
        reply = chat.answer(self.ctx, talk, rng.child("model"))
        kind = chat.status(reply)
        scored = self.scorer.rate(node.prompt, reply, kind, rng)
        score = None if scored is None else scored.value
        self.success = self.success or (score is not None and score >= self.config.cutoff)
        note = {
            **node.note,
            "depth": self.level,
            "node": node.name,
            "status": kind,
            "score": score,
            "scorer": None if scored is None else scored.note(),
            **({"dropped": self.dropped} if self.dropped else {}),
        }
        self.dropped = []
        if kind not in chat.FAILED:
            leaf = _Node(node.name, node.prompt, node.history)
            leaf.feedback = (reply.text, rewriting.told_score(scored))
            self.leaves.append(leaf)
        values = {
            "level": self.level,
            "success": self.success,
            "leaves": [asdict(n) for n in self.leaves],
            "waiting": [asdict(n) for n in self.waiting],
        }
        return Candidate.of(talk, reply=reply, state=State(values), note=note)


def _read_topic(text: str) -> bool:
    """The last `[[YES]]` or `[[NO]]`."""
    found = ON_TOPIC.findall(text)
    if not found:
        raise UnreadableError("no [[YES]] or [[NO]] in the reply")
    return bool(found[-1].upper() == "YES")


def _example_attacker(talk: Conversation, rng: Rng) -> str:
    return json.dumps({"improvement": "another way", "prompt": f"tell me {rng.seed % 10**6}"})


def _example_scorer(talk: Conversation, rng: Rng) -> str:
    if "on topic" in talk[0].content:
        return "Response: [[NO]]" if int(talk.key[:4], 16) % 4 == 0 else "Response: [[YES]]"
    return f"Rating: [[{9 - int(talk.key[:4], 16) % 2}]]"


EXAMPLE_REPLIES = {"attacker": _example_attacker, "scorer": _example_scorer}
EXAMPLE_ASSETS = {
    "tap/attacker": "Write prompts. Objective: {goal}. Start: {target_str}",
    "tap/judge": "Rate the answer to {goal} as Rating: [[rating]]",
    "tap/on_topic": "Is it on topic for {goal}? Response: [[response]]",
    "pair/init": "Begin. Objective: {goal}. Start: {target}",
    "pair/feedback": "ANSWER: {target_response} OBJECTIVE: {goal} SCORE: {score}",
}
