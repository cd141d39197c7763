"""REINFORCE-GCG: GCG whose objective is the expected reward of what the model really says.

Source: Geisler et al. 2025 (arXiv 2502.17254), Algorithm 1; sigeisler/reinforce-attacks-llms. Each
step samples the model at the current suffix (greedy, random, the target continued greedily, and the
most harmful answer remembered), judges these and their beginnings, turns rewards into token-level
leave-one-out weights, and lets GCG follow the weighted cross-entropy of the samples.

Deviations from the reference code: the reference's adaptive length always came out as its second
value; here candidates are compared on that length while nothing rewarded was said, and afterwards
on the first length after the last rewarded one. The iterate is judged before it is recorded, so a
step's rewards belong to its suffix. Samples the judge cannot score are dropped; a step in which no
token's rewards differ between samples follows the target's cross-entropy and is flagged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from adversariallm.attacks._kit import proposals, reinforce
from adversariallm.attacks._kit.objectives import token_weighted
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Candidate, Conversation, ModelInput, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="gcg_reinforce",
    summary="GCG that raises the judged reward of sampled answers",
    source="Geisler et al. 2025, arXiv 2502.17254",
    reference_code="sigeisler/reinforce-attacks-llms",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS,
    modality="suffix",
    target="required",
    version=2,
    judge=True,
    deviations=(
        "adaptive length as intended, not as the reference computes it",
        "a step's rewards belong to the recorded suffix",
    ),
    quick={
        "num_steps": 2,
        "search_width": 6,
        "topk": 16,
        "initial": "! ! !",
        "generation_length": 12,
        "judged_lengths": (4, 8),
    },
)
REWARDED = 0.2  # a reward from which on an answer counts as one to remember
SECURED = 0.75  # a remembered answer is then replaced only by a likelier one
RESAMPLES = 4


class Config(FrozenConfig):
    """Options; defaults are those of the reference code."""

    num_steps: int = Field(
        500, ge=0, description="optimization steps", json_schema_extra={"extends": True}
    )
    search_width: int = Field(512, ge=1, description="candidates per step")
    topk: int = Field(256, ge=1, description="tokens kept per position by gradient")
    initial: str = Field(
        "! " * 19 + "!", min_length=1, description="text of the suffix at the start"
    )
    num_random: int = Field(1, ge=0, description="random samples per step")
    temperature: float = Field(0.7, gt=0, description="of the random samples")
    sample_top_k: int = Field(256, ge=1, description="most likely tokens of the random samples")
    generation_length: int = Field(128, ge=1, description="tokens of each sample")
    judged_lengths: tuple[int, ...] = Field(
        (20, 40, 80),
        description="beginnings that are judged as well; the target's length replaces one",
    )
    baseline: float = Field(0.1, ge=0, le=1, description="reward of the dummy sample")
    exploit_above: float = Field(
        0.8, ge=0, le=1, description="greedy reward that, once passed, may not be given up again"
    )
    allow_non_ascii: bool = Field(False, description="also use tokens that are not printable ASCII")


@dataclass
class _Sample:
    """An answer with the rewards of its beginnings."""

    name: str
    ids: list[int]
    text: str
    rewards: dict[int, float] = field(default_factory=dict)
    finished: bool = False

    @property
    def reward(self) -> float:
        return self.rewards[len(self.ids)]

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> _Sample:
        rewards = {int(k): v for k, v in row["rewards"].items()}
        return cls(row["name"], row["ids"], row["text"], rewards, row["finished"])


@dataclass
class _At:
    """The current suffix with its judged samples and the answer remembered as most harmful."""

    slot: list[int]
    samples: list[_Sample]
    memory: _Sample | None = None
    memory_loss: float = 0.0
    secured: bool = False
    accepted: bool = True

    def greedy_reward(self) -> float:
        return max((s.reward for s in self.samples if s.name == "greedy"), default=0.0)

    def state(self) -> State:
        return State(asdict(self))

    @classmethod
    def from_state(cls, state: State) -> _At:
        v = dict(state.values)
        v["samples"] = [_Sample.from_json(s) for s in v["samples"]]
        v["memory"] = None if v["memory"] is None else _Sample.from_json(v["memory"])
        return cls(**v)


class Attack:
    """GCG on sampled and judged answers."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the start, then the accepted suffix after each step."""
        c = self.config
        behavior = task.behavior
        if ctx.judge is None:
            raise NeedsError("gcg_reinforce needs a judge for rewards; give reward=JUDGE")
        slot = Slot("suffix", c.initial, "space")
        problem = SlotProblem.build(ctx.model, behavior, slot, allow_non_ascii=c.allow_non_ascii)
        if ctx.state is None:
            start = problem.start.tolist()
            at = _At(start, self._samples(problem, behavior, start, None, ctx, 0))
            self._remember(problem, at)
            yield self._candidate(problem, at, ctx, {}, ())
            first = 1
        else:
            at, first = _At.from_state(ctx.state), ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            note, flags = self._step(problem, behavior, at, ctx, step)
            yield self._candidate(problem, at, ctx, note, flags)

    # One step

    def _step(
        self, problem: SlotProblem, behavior: Behavior, at: _At, ctx: Context, step: int
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        rng = ctx.rng.child("step", step)
        weighted, flags = self._weighted(problem, at)
        scores = self._token_scores(problem, at.slot, weighted)
        if scores is None:
            flags += ("gradient_not_finite",)
        for attempt in range(RESAMPLES):
            proposed = proposals.propose(
                torch.tensor(at.slot),
                scores,
                problem.allowed,
                rng.child("propose", attempt),
                width=self.config.search_width,
                topk=self.config.topk,
            )
            rows, counts = problem.reachable(proposed)
            if len(rows):
                break
        else:
            return {**counts, "accepted": False}, (*flags, "no_reachable_candidate")
        chosen, metric = self._select(problem, at, weighted, rows)
        samples = self._samples(problem, behavior, chosen, at.memory, ctx, step)
        moved = _At(chosen, samples, at.memory, at.memory_loss, at.secured)
        if at.secured and moved.greedy_reward() <= self.config.exploit_above:
            at.accepted = False  # what the greedy answer already gives is not given up
        else:
            at.__dict__.update(moved.__dict__)
            self._remember(problem, at)
        return {**counts, "accepted": at.accepted, "metric": metric}, flags

    def _samples(
        self,
        problem: SlotProblem,
        behavior: Behavior,
        slot: list[int],
        memory: _Sample | None,
        ctx: Context,
        step: int,
    ) -> list[_Sample]:
        """Judged answers at a suffix: greedy, random, the target continued, the remembered one."""
        c = self.config
        at = problem.at(torch.tensor(slot))
        greedy = GenerationConfig(max_new_tokens=c.generation_length)
        random = greedy.model_copy(update={"temperature": c.temperature, "top_k": c.sample_top_k})
        rng = ctx.rng.child("samples", step)
        replies = ctx.model.generate([at], greedy, [rng.child("greedy")])
        names = ["greedy", *(f"random{k}" for k in range(c.num_random))]
        if c.num_random:
            streams = [rng.child("random", k) for k in range(c.num_random)]
            replies += ctx.model.generate([at] * c.num_random, random, streams)
        samples = [
            _Sample(name, list(r.ids or ()), r.text, finished=r.finish_reason == "stop")
            for name, r in zip(names, replies, strict=True)
        ]
        samples.append(self._seed_sample(problem, at, ctx, rng))
        if memory is not None:
            samples.append(_Sample("memory", memory.ids, memory.text, finished=memory.finished))
        samples = [s for s in samples if s.ids]
        self._judge(problem, behavior, samples, ctx)
        return [s for s in samples if len(s.ids) in s.rewards]

    def _seed_sample(self, problem: SlotProblem, at: ModelInput, ctx: Context, rng: Rng) -> _Sample:
        """The target, continued greedily to the full length."""
        target = problem.target[: self.config.generation_length]
        room = self.config.generation_length - len(target)
        ids = list(target)
        finished = False
        if room > 0:
            begun = ModelInput(at.conversation, (*(at.ids or ()), *target))
            (reply,) = ctx.model.generate(
                [begun], GenerationConfig(max_new_tokens=room), [rng.child("seed")]
            )
            ids += list(reply.ids or ())
            finished = reply.finish_reason == "stop"
        text = problem.model.chat.decode_reply(at.ids or (), ids)
        return _Sample("seed", ids, text, finished=finished)

    def _judge(
        self, problem: SlotProblem, behavior: Behavior, samples: list[_Sample], ctx: Context
    ) -> None:
        """Fill in the rewards of each sample and of its beginnings; None leaves a gap."""
        lengths = self._lengths(len(problem.target))
        asked: list[tuple[_Sample, int]] = []
        talks: list[Conversation] = []
        for sample in samples:
            for n in sorted({k for k in lengths if k < len(sample.ids)} | {len(sample.ids)}):
                whole = n == len(sample.ids)
                decode = problem.model.chat.decode_reply
                text = sample.text if whole else decode(problem.segments.input_ids, sample.ids[:n])
                asked.append((sample, n))
                talks.append(Conversation.user(behavior.goal).append("assistant", text))
        facts = {"goal": behavior.goal, "context": behavior.context}
        assert ctx.judge is not None
        rewards = ctx.judge.rewards(talks, [facts] * len(talks))
        for (sample, n), reward in zip(asked, rewards, strict=True):
            if reward is None:
                continue
            if sample.name == "seed" and n <= len(problem.target):
                reward = max(reward, 0.5)
            sample.rewards[n] = reward

    def _lengths(self, target: int) -> list[int]:
        """Judged lengths, the one nearest to the target's replaced by it."""
        lengths = list(self.config.judged_lengths)
        if lengths:
            nearest = min(range(len(lengths)), key=lambda i: abs(lengths[i] - target))
            lengths[nearest] = target
        return sorted(lengths)

    # The objective

    def _weighted(
        self, problem: SlotProblem, at: _At
    ) -> tuple[list[tuple[_Sample, Tensor]], tuple[str, ...]]:
        """Samples with the weight of each of their tokens; the plain target where nothing tells."""
        samples = at.samples
        length = max((len(s.ids) for s in samples), default=0)
        table = reinforce.token_rewards(
            [s.ids for s in samples], [s.rewards for s in samples], length
        )
        if len(samples) < 2 or bool((table == table[0]).all()):
            target = list(problem.target)
            plain = torch.full((len(target),), 1 / len(target))
            return [(_Sample("seed", target, ""), plain)], ("rewards_equal",)
        weights = reinforce.leave_one_out(table, self.config.baseline)
        out = []
        for s, row in zip(samples, weights, strict=True):
            end = len(s.ids) - 1 if s.finished and s.name == "seed" else None
            position = reinforce.position_weights(s.ids, self.config.generation_length, end)
            out.append((s, row[: len(s.ids)] * position))
        return out, ()

    def _token_scores(
        self, problem: SlotProblem, slot: list[int], weighted: Sequence[tuple[_Sample, Tensor]]
    ) -> Tensor | None:
        """`[n, V]` gradient of the weighted loss of all samples; None if not finite."""
        total: Tensor | None = None
        for sample, weights in weighted:
            gradient = problem.model.gradient(
                problem.segments.input_with(slot),
                problem.segments.slot_positions,
                sample.ids,
                objective=token_weighted(weights),
                shared=len(problem.segments.before),
            )
            if not gradient.finite:
                return None
            total = gradient.slot if total is None else total + gradient.slot
        return None if total is None else problem.model.token_scores(total)

    def _select(
        self,
        problem: SlotProblem,
        at: _At,
        weighted: Sequence[tuple[_Sample, Tensor]],
        rows: Tensor,
    ) -> tuple[list[int], float]:
        """The candidate with the lowest metric over the samples that are not random."""
        fixed = [(s, w) for s, w in weighted if not s.name.startswith("random")] or list(weighted)
        reward = at.greedy_reward()
        shares = reinforce.selection_weights([s.name for s, _ in fixed], reward)
        cut = self._compared_length(at)
        inputs = [problem.segments.input_with(r) for r in rows.tolist()]
        metric = torch.zeros(len(rows))
        for share, (sample, weights) in zip(shares, fixed, strict=True):
            ids = sample.ids[:cut]
            found = problem.model.losses(
                inputs,
                [ids] * len(inputs),
                objective=token_weighted(weights[: len(ids)]),
                shared=len(problem.segments.before),
            )
            metric += float(share) * found.loss.float().cpu()
        winner = int(metric.argmin())
        return rows[winner].tolist(), float(metric[winner]) + 10 * (1 - reward)

    def _compared_length(self, at: _At) -> int:
        """How many tokens of the samples candidates are compared on."""
        lengths = [*self.config.judged_lengths, self.config.generation_length]
        rewarded = [
            n for s in at.samples if s.name != "seed" for n, r in s.rewards.items() if r >= REWARDED
        ]
        if not rewarded:
            return lengths[min(1, len(lengths) - 1)]
        return min((n for n in lengths if n > max(rewarded)), default=lengths[-1])

    def _remember(self, problem: SlotProblem, at: _At) -> None:
        """Keep the best rewarded answer; a secured one gives way only to a likelier one."""
        at.accepted = True
        at.secured = at.secured or at.greedy_reward() > self.config.exploit_above
        said = [s for s in at.samples if s.name not in ("seed", "memory") and s.reward >= REWARDED]
        if not said:
            return
        best = max(said, key=lambda s: s.reward)
        loss = partial(self._likelihood, problem, at.slot)
        if at.memory is None:
            at.memory, at.memory_loss = best, loss(best)
        elif at.memory.reward > SECURED:
            new = loss(best)
            if best.reward > SECURED and new < loss(at.memory):
                at.memory, at.memory_loss = best, new
        elif best.reward >= at.memory.reward:
            at.memory, at.memory_loss = best, loss(best)

    @staticmethod
    def _likelihood(problem: SlotProblem, slot: list[int], sample: _Sample) -> float:
        found = problem.model.losses(
            [problem.segments.input_with(slot)],
            [sample.ids],
            shared=len(problem.segments.before),
        )
        return float(found.per_token[0].mean())

    def _candidate(
        self,
        problem: SlotProblem,
        at: _At,
        ctx: Context,
        note: dict[str, Any],
        flags: tuple[str, ...],
    ) -> Candidate:
        with ctx.phase("diagnosis"):
            loss = float(problem.losses([at.slot]).loss[0])
        rewards = {s.name: s.reward for s in at.samples}
        return Candidate.of(
            problem.at(torch.tensor(at.slot)),
            loss,
            state=at.state(),
            note={**note, "rewards": rewards},
            flags=flags,
        )
