"""PGD-Discrete: gradient descent on relaxed tokens, turned into text at every step.

Source: Geisler et al. 2024, "Attacking Large Language Models with Projected Gradient Descent"
(arXiv 2402.09154), Algorithms 1 to 3; sigeisler/reinforce-attacks-llms for schedules, auxiliary
losses and defaults. Rows of a prefix and a suffix slot live on the simplex; an entropy projection
presses them towards single tokens, harder the wider the gap between relaxed and discrete loss.
Control losses ask that the free tokens are likely after what stands before them.

Deviations from the reference code: the discrete iterate is what decoding and encoding again gives,
so every recorded input is reachable text; behaviors do not exchange solutions (mixing would make a
result depend on its neighbors); the control losses are off unless asked for; target weights fall
linearly; the variable is float32. `optimizer=steepest` is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from adversariallm.attacks._kit import projections
from adversariallm.attacks._kit.adam import adam
from adversariallm.attacks._kit.objectives import token_weighted
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.attacks._kit.steepest import steepest
from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, DifferentiableModel, Needs
from adversariallm.core.types import Candidate, ModelInput, Segments, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="pgd_discrete",
    summary="relaxed tokens, projected and discretized at every step",
    source="Geisler et al. 2024, arXiv 2402.09154",
    reference_code="sigeisler/reinforce-attacks-llms",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS | Needs.EMBEDDINGS,
    modality="prompt",
    target="required",
    deviations=(
        "the discrete iterate is decoded and encoded again",
        "behaviors do not exchange solutions",
        "the two control losses are off by default",
    ),
    version=3,
    quick={"num_steps": 4, "prefix_tokens": 0, "suffix_tokens": 4, "anneal_steps": 2},
)
GAP = 0.1  # relative relaxation gap from which on the entropy factor acts in full


class Config(FrozenConfig):
    """Options; defaults are those of the reference code."""

    num_steps: int = Field(5000, ge=0, description="optimization steps")
    prefix_tokens: int = Field(25, ge=0, description="free tokens before the request")
    suffix_tokens: int = Field(25, ge=0, description="free tokens after the request")
    initialization: Literal["random", "text"] = Field(
        "random", description="random rows, or the tokens of the initial text"
    )
    initial: str = Field("x", description="text repeated to fill the slots at the start")
    learning_rate: float = Field(0.11, gt=0, description="rate before the cycles begin")
    optimizer: Literal["adam", "steepest"] = Field(
        "adam",
        description="adam, or steps that keep how a row's tokens compare (ours, for short runs)",
        json_schema_extra={"since": "1.0"},
    )
    constant_steps: int = Field(100, ge=0, description="steps at the constant rate")
    cycle_steps: int = Field(60, ge=1, description="length of a cosine cycle after that")
    peak_rate: float = Field(0.325, gt=0, description="rate that each cycle moves to")
    entropy_factor: float = Field(0.4, ge=0, le=1, description="final strength of the projection")
    anneal_steps: int = Field(250, ge=0, description="steps until the factor is reached")
    gap_scaling: bool = Field(True, description="weaken the projection where the gap is small")
    max_gradient: float = Field(20.0, gt=0, description="largest norm of a row's gradient")
    patience: int = Field(
        100, ge=1, description="steps without a better text after which the best is taken up again"
    )
    first_weight: float = Field(
        5.0, gt=0, description="weight of the first target token, last is 1"
    )
    target_weight: float = Field(0.84, ge=0, description="weight of the target's loss")
    neighbor_weight: float = Field(0.01, ge=0, description="reward for neighboring rows to differ")
    entropy_weight: float = Field(2e-4, ge=0, description="penalty on the rows' entropy")
    control_next_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the free rows' likelihood, moving what stands before (paper: 0.007)",
        json_schema_extra={"since": "1.0"},
    )
    control_row_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the free rows' likelihood, moving the rows (paper: 0.05)",
        json_schema_extra={"since": "1.0"},
    )
    noise: float = Field(0.0, ge=0, description="Langevin noise, times the square root of the rate")
    allow_non_ascii: bool = Field(False, description="also use tokens that are not printable ASCII")

    @model_validator(mode="after")
    def _some_slot(self) -> Config:
        if not self.prefix_tokens + self.suffix_tokens:
            raise ValueError("prefix_tokens and suffix_tokens are both 0: nothing is free")
        return self


@dataclass
class _Relaxed:
    """The relaxed rows with their loss and gradient, Adam's moments, and the best text so far."""

    x: Tensor
    loss: float = math.inf
    gradient: Tensor | None = None
    moments: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0
    best: list[int] = field(default_factory=list)
    best_loss: float = math.inf
    stale: int = 0
    gap: float = 1.0

    def state(self) -> State:
        tensors = {"x": self.x, **self.moments}
        if self.gradient is not None:
            tensors["gradient"] = self.gradient
        values = {k: v for k, v in vars(self).items() if k not in ("x", "gradient", "moments")}
        return State({k: None if v == math.inf else v for k, v in values.items()}, tensors)

    @classmethod
    def from_state(cls, state: State) -> _Relaxed:
        tensors = dict(state.tensors)
        x, gradient = tensors.pop("x"), tensors.pop("gradient", None)
        values: dict[str, Any] = {k: math.inf if v is None else v for k, v in state.values.items()}
        return cls(x, gradient=gradient, moments=tensors, **values)


class Attack:
    """Projected gradient descent on relaxed tokens."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the text of the initial rows, then the text after each step."""
        c = self.config
        problem = self._problem(task, ctx)
        if ctx.state is None:
            at = _Relaxed(self._start(problem, ctx))
            yield self._evaluate(problem, at, {"restart": False}, last=c.num_steps == 0)
            first = 1
        else:
            at, first = _Relaxed.from_state(ctx.state), ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            note = self._step(problem, at, ctx, step)
            yield self._evaluate(problem, at, note, last=step == c.num_steps)

    # Set-up

    def _problem(self, task: Task, ctx: Context) -> SlotProblem:
        """The slots, filled with as many tokens as asked for."""
        c = self.config
        where: Literal["both", "prefix", "suffix"] = (
            "both"
            if c.prefix_tokens and c.suffix_tokens
            else "prefix"
            if c.prefix_tokens
            else "suffix"
        )
        unit = f"{c.initial} "
        texts = {
            "prefix": (unit * c.prefix_tokens).rstrip(),
            "suffix": (unit * c.suffix_tokens).rstrip(),
        }
        slot = Slot(
            where,
            texts["prefix"] if where == "prefix" else texts["suffix"],
            "space",
            prefix=texts["prefix"] if where == "both" else None,
        )
        return SlotProblem.build(
            ctx.model, task.behavior, slot, allow_non_ascii=c.allow_non_ascii, filter="none"
        )

    def _start(self, problem: SlotProblem, ctx: Context) -> Tensor:
        """`[n, V]` rows on the simplex, zero on forbidden ids."""
        n, width = len(problem.start), problem.model.num_embeddings
        if self.config.initialization == "text":
            return torch.nn.functional.one_hot(problem.start, width).float()
        rows = torch.rand(n, width, generator=ctx.rng.child("init").torch())
        rows = rows.masked_fill(~problem.allowed, 0.0)
        return rows / rows.sum(-1, keepdim=True)

    # One step

    def _step(self, problem: SlotProblem, at: _Relaxed, ctx: Context, step: int) -> dict[str, Any]:
        """Adam and projections, or the best text taken up again; note what was in force."""
        c = self.config
        rate = self._rate(step)
        if at.stale >= c.patience or at.gradient is None:
            width = problem.model.num_embeddings
            at.x = torch.nn.functional.one_hot(torch.tensor(at.best), width).float()
            at.moments, at.count, at.stale = {}, 0, 0
            return {"restart": True, "rate": rate}
        at.count += 1
        if c.optimizer == "adam":
            direction, at.moments = adam(at.gradient, at.moments, at.count)
        else:
            direction, at.moments = steepest(at.gradient, problem.allowed, at.moments)
        at.x = projections.simplex(at.x - rate * direction)
        if c.noise:
            noise = torch.randn(at.x.shape, generator=ctx.rng.child("noise", step).torch())
            noise = (noise * c.noise * rate**0.5).masked_fill(~problem.allowed, 0.0)
            at.x = projections.simplex(at.x + noise)
        factor = self._factor(step, at.gap, rate)
        at.x = projections.entropy_projection(at.x, factor)
        return {"restart": False, "rate": rate, "factor": factor}

    def _relax(self, problem: SlotProblem, at: _Relaxed, *, last: bool) -> None:
        """Relaxed target loss and, unless it is the last, the clipped `[n, V]` gradient."""
        c = self.config
        objective = token_weighted(self._weights(problem))
        vectors = at.x @ problem.model.embedding_matrix().float().cpu()
        if last:
            rows = problem.rows_with(vectors)
            found = problem.model.soft_losses([rows], [problem.target], objective=objective)
            at.loss, at.gradient = float(found.loss[0]), None
            return
        slope = problem.model.gradient(
            problem.segments.input_ids,
            problem.segments.slot_positions,
            problem.target,
            objective=objective,
            slot_embeddings=vectors,
            shared=len(problem.segments.before),
        )
        at.loss, at.gradient = slope.loss, None
        if slope.finite:
            gradient = c.target_weight * problem.model.token_scores(slope.slot).float().cpu()
            gradient = gradient + self._auxiliary(at.x)
            if c.control_next_weight or c.control_row_weight:
                gradient = gradient + self._control(problem, at.x, vectors)
            gradient = gradient.masked_fill(~problem.allowed, 0.0)
            at.gradient = projections.l2_ball(gradient, c.max_gradient)

    def _weights(self, problem: SlotProblem) -> Tensor:
        """`[T]` weights of the target's tokens, falling linearly, sum 1."""
        weights = torch.linspace(self.config.first_weight, 1, len(problem.target))
        return weights / weights.sum()

    def _auxiliary(self, x: Tensor) -> Tensor:
        """Gradient of the losses that need no model: neighbors differ, rows are sharp."""
        c = self.config
        with torch.enable_grad():
            leaf = x.clone().requires_grad_(True)
            entropy = projections.tsallis2(leaf).clamp_min(0)
            loss = c.entropy_weight * (entropy**6).mean().clamp_min(1e-30) ** (1 / 6)
            if len(x) > 1:
                loss = loss - c.neighbor_weight * (leaf[1:] - leaf[:-1]).abs().sum(-1).mean()
            (gradient,) = torch.autograd.grad(loss, leaf)
        return gradient

    def _control(self, problem: SlotProblem, x: Tensor, vectors: Tensor) -> Tensor:
        """`[n, V]` gradient of the mean cross-entropy of the rows under the model's prediction.

        One part moves what the model predicts from, with the rows it should predict held; the other
        moves the rows, with the prediction held.
        """
        c = self.config
        model = cast("DifferentiableModel", problem.model)
        slot = problem.segments.slot_positions
        seen: list[Tensor] = []

        def unlikely(logits: Tensor, _: Tensor | None) -> Tensor:
            scores = logits.log_softmax(-1)
            seen.append(scores.detach().float().cpu())
            return -(x[free].to(scores) * scores).sum(-1).mean()

        free = [
            i for i, position in enumerate(slot) if position
        ]  # nothing predicts the first token
        before = [slot[i] - 1 for i in free]
        slope = model.soft_gradient(problem.rows_with(vectors), slot, before, unlikely)
        gradient = c.control_next_weight * model.token_scores(slope.slot).float().cpu()
        gradient[free] -= c.control_row_weight * seen[0] / len(free)
        return gradient

    def _rate(self, step: int) -> float:
        """Constant at first, then cosine cycles from the base rate to the peak."""
        c = self.config
        if step <= c.constant_steps:
            return c.learning_rate
        phase = (step - c.constant_steps - 1) % c.cycle_steps / c.cycle_steps
        return c.peak_rate + (c.learning_rate - c.peak_rate) * (1 + math.cos(math.pi * phase)) / 2

    def _factor(self, step: int, gap: float, rate: float) -> float:
        """Strength of the entropy projection: annealed, and scaled by gap and rate."""
        c = self.config
        annealed = c.entropy_factor * min(1.0, step / c.anneal_steps if c.anneal_steps else 1.0)
        if not c.gap_scaling:
            return annealed
        return annealed * gap_scale(gap) * rate / max(c.learning_rate, c.peak_rate)

    # Text

    def _evaluate(
        self, problem: SlotProblem, at: _Relaxed, note: dict[str, Any], *, last: bool
    ) -> Candidate:
        """The text that the rows' best tokens read, with its loss, beside the relaxed loss."""
        self._relax(problem, at, last=last)
        ids = at.x.masked_fill(~problem.allowed, -1.0).argmax(-1).tolist()
        text: Segments = problem.model.chat.canonicalize(problem.segments, ids)
        same_start = text.before == problem.segments.before
        found = problem.model.losses(
            [text.input_ids], [problem.target], shared=len(text.before) if same_start else 0
        )
        loss = float(found.loss[0])
        weighted = float((self._weights(problem) * found.per_token[0]).sum())
        at.gap = (weighted - at.loss) / weighted if weighted > 0 and math.isfinite(at.loss) else 0.0
        if loss < at.best_loss:
            at.best, at.best_loss, at.stale = ids, loss, 0
        else:
            at.stale += 1
        note = {
            **note,
            "relaxed_loss": at.loss if math.isfinite(at.loss) else None,
            "gap": at.gap,
            "unchanged": text.slot_ids == tuple(ids),
            "slot_length": len(text.slot_ids),
        }
        flags = () if last or at.gradient is not None else ("gradient_not_finite",)
        return Candidate.of(
            ModelInput.from_segments(text), loss, state=at.state(), note=note, flags=flags
        )


def gap_scale(gap: float) -> float:
    """1 from a relative gap of 0.1 on, below it 1 / (1 + (1/z - 1)^2) with z = gap / 0.9.

    Source: arXiv 2402.09154, appendix, as the reference code computes it.
    """
    if gap >= GAP:
        return 1.0
    if gap <= 0:
        return 0.0
    z = gap / (1 - GAP)
    return 1 / (1 + (1 / z - 1) ** 2)
