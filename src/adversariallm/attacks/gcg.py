"""GCG, greedy coordinate gradient: swap the suffix token with the most promising gradient, test it.

Source: Zou et al. 2023, "Universal and Transferable Adversarial Attacks on Aligned Language Models"
(arXiv 2307.15043), Algorithm 1; llm-attacks and HarmBench's copy of it for the defaults, nanoGCG
0.3.0 for buffer and mellowmax, the AdversariaLLM toolbox for smoothing, momentum, growing target.
One suffix for several behaviors or models is `gcg_universal`.

Deviations from the reference code: the conversation is tokenized as a whole and candidates must
survive that (`filter`); losses are float32; step 0 is the un-optimized start; the recorded loss is
the mean target cross-entropy of exactly the recorded suffix, whatever objective guides the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from adversariallm.attacks._kit import proposals
from adversariallm.attacks._kit.buffer import Buffer, random_fill
from adversariallm.attacks._kit.objectives import ObjectiveName, make_objective
from adversariallm.attacks._kit.ranking import nan_flags, numbers
from adversariallm.attacks._kit.slots import Filter, SlotProblem
from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs, Objective
from adversariallm.core.rng import Rng
from adversariallm.core.types import Candidate, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="gcg",
    summary="greedy coordinate gradient on a suffix",
    source="Zou et al. 2023, arXiv 2307.15043",
    reference_code="llm-attacks/llm-attacks; GraySwanAI/nanoGCG 0.3.0",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS,
    modality="suffix",
    version=3,
    target="required",
    quick={"num_steps": 3, "search_width": 12, "topk": 32, "initial": "! ! ! !"},
    deviations=(
        "candidates must survive tokenizing the whole conversation (filter=conversation)",
        "losses are computed in float32",
        "the search continues when no candidate is reachable; the step is flagged",
        "with fewer candidates than slot tokens, even positions start at a drawn place",
    ),
)
RESAMPLES = 4  # tries to find a reachable candidate before a step is given up


class Config(FrozenConfig):
    """Options; defaults are those of llm-attacks."""

    num_steps: int = Field(
        500, ge=0, description="optimization steps", json_schema_extra={"extends": True}
    )
    search_width: int = Field(512, ge=1, description="candidates per step")
    topk: int = Field(256, ge=1, description="tokens kept per position by gradient")
    n_replace: int = Field(1, ge=1, description="positions changed in a candidate")
    initial: str = Field("! " * 19 + "!", min_length=1, description="text of the slot at the start")
    placement: Literal["suffix", "prefix", "both", "turn"] = Field(
        "suffix", description="where the slot is"
    )
    join: Literal["none", "space"] = Field("space", description="between prompt and slot")
    objective: ObjectiveName = Field("ce", description="loss that guides the search")
    objective_scale: float = Field(1.0, gt=0, description="alpha of mellowmax")
    position_sampling: proposals.Positions = Field(
        "even",
        description="even: candidate j changes position j*n/W (n_replace=1), counted from a place "
        "drawn at each step where W < n; proposals without a gradient are always uniform",
    )
    token_selection: Literal["gradient", "random_overall", "random_per_position"] = Field(
        "gradient", description="how candidates are proposed; the others are controls"
    )
    buffer_size: int = Field(
        0,
        ge=0,
        description="best suffixes kept, random ones at first; 0 always moves on",
    )
    grad_smoothing: int = Field(1, ge=1, description="gradients averaged over random neighbors")
    grad_momentum: float = Field(0.0, ge=0, lt=1, description="share of the previous gradient kept")
    grow_target: bool = Field(False, description="lengthen the target as the model follows it")
    exclude_current: bool = Field(False, description="never re-score the current suffix")
    filter: Filter = Field("conversation", description="which candidates count as text")
    allow_non_ascii: bool = Field(False, description="also use tokens that are not printable ASCII")
    early_stop: bool = Field(False, description="end when the greedy answer starts with the target")


@dataclass
class _Search:
    """Where the search stands after a step."""

    slot: Tensor
    loss: float | None
    length: int
    matched: bool
    momentum: Tensor | None
    buffer: Buffer

    def state(self) -> State:
        tensors = {} if self.momentum is None else {"momentum": self.momentum.cpu()}
        values = {
            "slot": self.slot.tolist(),
            "loss": self.loss,
            "length": self.length,
            "matched": self.matched,
            "buffer": self.buffer.to_json(),
        }
        return State(values, tensors)

    @classmethod
    def from_state(cls, state: State, size: int) -> _Search:
        v = state.values
        return cls(
            torch.tensor(v["slot"]),
            v["loss"],
            v["length"],
            v["matched"],
            state.tensors.get("momentum"),
            Buffer.from_json(size, v["buffer"]),
        )


class Attack:
    """Greedy coordinate gradient."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the start, then the suffix chosen at each step."""
        c = self.config
        problem = SlotProblem.build(
            ctx.model,
            task.behavior,
            Slot(c.placement, c.initial, c.join),
            allow_non_ascii=c.allow_non_ascii,
            filter=c.filter,
        )
        if ctx.state is None:
            at, flags = self._start(problem)
            yield self._candidate(problem, at, ctx, {}, flags)
            first = 1
        else:
            at, first = _Search.from_state(ctx.state, c.buffer_size), ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            if c.early_stop and at.matched:
                return
            note, flags = self._step(problem, at, ctx, step)
            yield self._candidate(problem, at, ctx, note, flags)

    def _start(self, problem: SlotProblem) -> tuple[_Search, tuple[str, ...]]:
        """Score the initial suffix."""
        length = 1 if self.config.grow_target else len(problem.target)
        at = _Search(problem.start, None, length, False, None, Buffer(self.config.buffer_size))
        _, flags = self._accept(problem, at, problem.start.unsqueeze(0))
        return at, flags

    def _fill(self, problem: SlotProblem, at: _Search, rng: Rng) -> tuple[str, ...]:
        """Score random suffixes to fill the buffer and go on from its best; flags."""
        rows = random_fill(problem, at.buffer.size, rng)
        if at.buffer.entries:
            rows = rows[1:]  # the start is in it
        return self._accept(problem, at, rows)[1] if len(rows) else ()

    def _step(
        self, problem: SlotProblem, at: _Search, ctx: Context, step: int
    ) -> tuple[dict[str, object], tuple[str, ...]]:
        """Propose, filter, score, move on."""
        rng = ctx.rng.child("step", step)
        flags: list[str] = []
        if step == 1 and self.config.buffer_size > 1:
            flags += self._fill(problem, at, ctx.rng.child("init"))
        scores = None
        if self.config.token_selection == "gradient":
            scores = self._token_scores(problem, at, rng)
            if scores is None:
                flags.append("gradient_not_finite")
        note: dict[str, object] = {"length": at.length}
        for attempt in range(RESAMPLES):
            proposed = self._propose(problem, at.slot, scores, rng.child("propose", attempt))
            rows, counts = problem.reachable(proposed)
            if len(rows):
                winner, more = self._accept(problem, at, rows)
                rank = None
                if winner is not None and scores is not None:
                    rank = proposals.promised_rank(rows, winner, scores)
                note = {**note, **counts, "resampled": attempt, "rank": rank}
                return note, tuple(dict.fromkeys((*flags, *more)))
        return {**note, **counts, "resampled": RESAMPLES}, (*flags, "no_reachable_candidate")

    def _token_scores(self, problem: SlotProblem, at: _Search, rng: Rng) -> Tensor | None:
        """`[n, V]` gradient with respect to the one-hot rows, smoothed; None if not finite."""
        c = self.config
        slots = [at.slot]
        if c.grad_smoothing > 1:
            generator = rng.child("smoothing").torch()
            positions = proposals.uniform_positions(
                len(at.slot), c.grad_smoothing - 1, 1, generator
            )
            slots += list(
                proposals.replace_uniformly(at.slot, positions, problem.allowed_ids, generator)
            )
        gradients = []
        for slot in slots:
            gradient = problem.gradient(slot, self._objective(problem), length=at.length)
            if not gradient.finite:
                return None
            gradients.append(gradient.slot)
        # [n, d]: scores are linear in it, and rows of the vocabulary would be stored at each step
        slope = torch.stack(gradients).mean(0)
        if c.grad_momentum:
            if at.momentum is not None:
                slope = c.grad_momentum * at.momentum.to(slope) + (1 - c.grad_momentum) * slope
            at.momentum = slope
        return problem.token_scores(slope)

    def _propose(
        self, problem: SlotProblem, slot: Tensor, scores: Tensor | None, rng: Rng
    ) -> Tensor:
        """`[W, n]` candidates."""
        c = self.config
        if c.token_selection == "random_per_position":
            generator = rng.child("token_choice").torch()
            rows = proposals.replace_each_position(
                slot, c.search_width, problem.allowed_ids, generator
            )
        else:
            rows = proposals.propose(
                slot,
                scores,
                problem.allowed,
                rng,
                width=c.search_width,
                topk=c.topk,
                n_replace=c.n_replace,
                positions="uniform" if scores is None else c.position_sampling,
            )
        return proposals.without_duplicates(rows, slot) if c.exclude_current else rows

    def _accept(
        self, problem: SlotProblem, at: _Search, rows: Tensor
    ) -> tuple[int | None, tuple[str, ...]]:
        """Score candidates and move to the best, or to the buffer's best.

        Returns:
            The row of the candidate that the search moved to, None where it is none of them, and
            flags. A candidate whose loss is no number is never moved to nor kept.
        """
        losses = problem.losses(rows, self._objective(problem), length=at.length)
        order, flags = numbers(losses.loss).tolist(), nan_flags(losses.loss)
        if not order:
            return None, flags
        winner = order[0]
        if at.buffer.size:
            for i in order:
                at.buffer.add(
                    float(losses.loss[i]),
                    rows[i].tolist(),
                    bool(losses.matches[i]),
                    float(losses.per_token[i].mean()),
                )
            best = at.buffer.best
            at.slot, at.loss, at.matched = torch.tensor(best.slot), best.target_loss, best.matched
            moved = best.slot == rows[winner].tolist()
        else:
            at.slot = rows[winner]
            at.loss = float(losses.per_token[winner].mean())
            at.matched = bool(losses.matches[winner])
            moved = True
        if self.config.grow_target and at.matched and at.length < len(problem.target):
            at.length += 1
            at.buffer.clear()  # losses of another target length do not compare
            at.matched = False
        return (winner if moved else None), flags

    def _objective(self, problem: SlotProblem) -> Objective | None:
        c = self.config
        return make_objective(c.objective, c.objective_scale, problem.allowed)

    def _candidate(
        self,
        problem: SlotProblem,
        at: _Search,
        ctx: Context,
        note: dict[str, object],
        flags: tuple[str, ...] = (),
    ) -> Candidate:
        loss = at.loss
        if self.config.grow_target:  # the recorded loss is that of the whole target
            with ctx.phase("diagnosis"):
                loss = float(problem.losses([at.slot.tolist()]).per_token[0].mean())
        return Candidate.of(problem.at(at.slot), loss, state=at.state(), note=note, flags=flags)
