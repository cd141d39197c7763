"""PGD on the slot's input: free embedding vectors, or relaxed one-hot rows, within a ball.

Source: Schwinn et al. 2024, "Soft Prompt Threats" (arXiv 2402.09063); the authors' scripts
(SchwinnL/LLM_Embedding_Attack) for the defaults, the AdversariaLLM toolbox for balls, restarts and
the one-hot space. An upper bound for white-box access: no text produces these inputs.

Deviations from the reference code: the chat template is used; every step has a fresh gradient of
the slot rows alone; the recorded embeddings are those whose loss is recorded; restarts draw
relative noise for slot rows only, are projected and reset the optimizer; the variable is float32;
ties to a reference model skip padding and target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from adversariallm.attacks._kit import projections
from adversariallm.attacks._kit.adam import adam
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.attacks._kit.ties import Tie
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import AttackInfo, Context, DifferentiableModel, Needs, Wanted
from adversariallm.core.types import Behavior, Candidate, ModelInput, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="pgd",
    summary="gradient descent on embedding vectors or relaxed tokens of a suffix",
    source="Schwinn et al. 2024, arXiv 2402.09063",
    reference_code="SchwinnL/LLM_Embedding_Attack; LLM-QC/AdversariaLLM@9fe870b",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS | Needs.EMBEDDINGS,
    modality="embedding",
    target="required",
    deviations=("the chat template is used", "restarts stay in the ball"),
    quick={"num_steps": 4, "initial": "! ! !", "step_size": 0.1},
)


class Config(FrozenConfig):
    """Options; defaults are those of the authors' scripts."""

    num_steps: int = Field(100, ge=0, description="optimization steps")
    space: Literal["embedding", "one_hot"] = Field("embedding", description="what is optimized")
    optimizer: Literal["sign", "normalized", "adam"] = Field(
        "sign", description="sign of the gradient, gradient of unit norm per row, or Adam"
    )
    step_size: float = Field(0.01, ge=0, description="length of a step, see step_unit")
    step_unit: Literal["absolute", "scale"] = Field(
        "absolute", description="absolute, or in units of the mean embedding norm"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the step size falls to 0 over the run"
    )
    projection: Literal["none", "l2", "linf", "l1", "simplex"] = Field(
        "none", description="set of allowed changes; simplex only in one_hot space"
    )
    epsilon: float = Field(1.0, ge=0, description="radius in units of the mean embedding norm")
    norm_over: Literal["token", "slot"] = Field(
        "token", description="bound each token's change, or the whole slot's"
    )
    embedding_scale: float | None = Field(
        None, gt=0, description="unit of lengths; null: mean norm of all embedding vectors"
    )
    restart_every: int = Field(0, ge=0, description="steps between random restarts; 0: none")
    restart_epsilon: float = Field(
        0.1, ge=0, description="length of a restart's change, in units of the scale"
    )
    initial: str = Field("! " * 19 + "!", min_length=1, description="text of the slot at the start")
    placement: Literal["suffix", "prefix", "both", "turn"] = Field(
        "suffix", description="where the slot is"
    )
    allow_non_ascii: bool = Field(
        False, description="one_hot: also use tokens that are not printable ASCII"
    )

    tie_logits: float = Field(
        0.0,
        ge=0,
        description="weight of the divergence from a reference model's next tokens",
        json_schema_extra={"since": "1.0"},
    )
    tie_features: float = Field(
        0.0,
        ge=0,
        description="weight of the distance from a reference model's hidden states",
        json_schema_extra={"since": "1.0"},
    )
    tie_benign: float = Field(
        0.0,
        ge=0,
        description="weight of that divergence where the slot follows a harmless request",
        json_schema_extra={"since": "1.0"},
    )
    benign: str = Field(
        "Name three things that are good for a garden.",
        description="the harmless request of tie_benign",
        json_schema_extra={"since": "1.0"},
    )

    @property
    def tied(self) -> bool:
        """Whether there is a reference model."""
        return bool(self.tie_logits or self.tie_features or self.tie_benign)

    def wanted(self) -> Wanted:
        """The reference model, and that both models show what is tied."""
        if not self.tied:
            return Wanted()
        needs = Needs.GRADIENTS | (Needs.HIDDEN if self.tie_features else Needs.GRADIENTS)
        roles = {
            "reference": "what the attacked model was fine-tuned from, or another of its shape"
        }
        return Wanted(model=needs, helpers=roles, helper_needs={"reference": needs})

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.projection == "simplex" and self.space != "one_hot":
            raise ValueError("projection=simplex needs space=one_hot")
        return self


@dataclass
class _Point:
    """The variable, its gradient, and Adam's moments."""

    x: Tensor
    loss: float
    gradient: Tensor | None = None
    moments: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0
    finite: bool = True
    tie: float | None = None

    def state(self) -> State:
        tensors = {"x": self.x, **self.moments}
        if self.gradient is not None:
            tensors["gradient"] = self.gradient
        return State({"loss": self.loss, "count": self.count, "finite": self.finite}, tensors)

    @classmethod
    def from_state(cls, state: State) -> _Point:
        tensors = dict(state.tensors)
        x, gradient = tensors.pop("x"), tensors.pop("gradient", None)
        return cls(x, state.values["loss"], gradient, tensors, state.values["count"],
                   state.values["finite"])  # fmt: skip


class Attack:
    """Projected gradient descent on a slot."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the embeddings of the initial slot, then the iterate after each step."""
        c = self.config
        problem = self._problem(task.behavior, ctx)
        ties = self._tied(problem, task, ctx)
        origin = self._origin(problem)
        scale = self._scale(problem)
        if ctx.state is None:
            point = _Point(origin.clone(), 0.0)
            self._evaluate(problem, ties, point, last=c.num_steps == 0)
            yield self._candidate(problem, point, origin, scale, restarted=False)
            first = 1
        else:
            point, first = _Point.from_state(ctx.state), ctx.state.step + 1
        for step in range(first, c.num_steps + 1):
            restart = bool(c.restart_every) and step % c.restart_every == 0
            if restart:
                noise = torch.randn(origin.shape, generator=ctx.rng.child("restart", step).torch())
                self._restart(problem, point, origin, scale, noise)
            else:
                self._update(problem, point, origin, scale, step)
            self._evaluate(problem, ties, point, last=step == c.num_steps)
            yield self._candidate(problem, point, origin, scale, restarted=restart)

    def _problem(self, behavior: Behavior, ctx: Context) -> SlotProblem:
        c = self.config
        return SlotProblem.build(
            ctx.model,
            behavior,
            Slot(c.placement, c.initial, "space"),
            allow_non_ascii=c.allow_non_ascii,
            filter="none",
        )

    def _tied(self, problem: SlotProblem, task: Task, ctx: Context) -> list[Tie]:
        """The ties that the options ask for."""
        c = self.config
        if not c.tied:
            return []
        reference = cast("DifferentiableModel", ctx.helpers["reference"])
        ties = []
        if c.tie_logits or c.tie_features:
            ties.append(Tie(problem, reference, c.tie_logits, c.tie_features))
        if c.tie_benign:
            talk = task.behavior.conversation
            harmless = talk.with_content(talk.last_user, c.benign)
            other = self._problem(replace(task.behavior, conversation=harmless), ctx)
            if len(other.start) != len(problem.start):
                raise NeedsError(
                    f"the slot has {len(other.start)} tokens behind the harmless request and "
                    f"{len(problem.start)} behind that of {task.behavior.id!r}; give another "
                    "attacks.pgd.benign"
                )
            ties.append(Tie(other, reference, c.tie_benign))
        return ties

    # The variable

    def _origin(self, problem: SlotProblem) -> Tensor:
        """Where the slot starts: its embedding vectors, or its one-hot rows."""
        ids = problem.segments.slot_ids
        if self.config.space == "embedding":
            return problem.model.embed(ids).float().cpu()
        return torch.nn.functional.one_hot(problem.start, problem.model.num_embeddings).float()

    def _scale(self, problem: SlotProblem) -> float:
        """The unit of lengths: mean embedding norm in the ball's own norm; 1 in one-hot space."""
        c = self.config
        if c.embedding_scale is not None:
            return c.embedding_scale
        if c.space == "one_hot":
            return 1.0
        matrix = problem.model.embedding_matrix().float()
        return float(projections.norm_of(matrix, self._norm()).mean())

    def _norm(self) -> projections.Norm:
        """The norm in which changes are measured."""
        chosen = self.config.projection
        if chosen == "none" or chosen == "simplex":
            return "l2"
        return chosen

    def _vectors(self, problem: SlotProblem, x: Tensor) -> Tensor:
        """`[n, d]` embedding vectors of the variable."""
        if self.config.space == "embedding":
            return x
        return x @ problem.model.embedding_matrix().float().cpu()

    def _update(
        self, problem: SlotProblem, point: _Point, origin: Tensor, scale: float, step: int
    ) -> None:
        """One projected step; nothing moves along a gradient that is not finite."""
        c = self.config
        if point.gradient is None or not point.finite:
            return
        rate = c.step_size * (scale if c.step_unit == "scale" else 1.0)
        rate *= {
            "constant": 1.0,
            "linear": 1 - (step - 1) / c.num_steps,
            "cosine": 0.5 * (1 + math.cos(math.pi * (step - 1) / c.num_steps)),
        }[c.schedule]
        point.x = self._project(point.x - rate * self._direction(point), origin, scale)

    def _direction(self, point: _Point) -> Tensor:
        """What the optimizer makes of the gradient; rows without a gradient stay."""
        assert point.gradient is not None
        g = point.gradient
        if self.config.optimizer == "sign":
            return g.sign()
        if self.config.optimizer == "normalized":
            norms = g.norm(dim=-1, keepdim=True)
            return torch.where(norms > 0, g / norms.clamp_min(torch.finfo(g.dtype).tiny), 0.0)
        point.count += 1
        direction, point.moments = adam(g, point.moments, point.count)
        return direction

    def _project(self, x: Tensor, origin: Tensor, scale: float) -> Tensor:
        c = self.config
        if c.projection == "simplex":
            return projections.simplex(x)
        change = projections.ball(
            x - origin, c.projection, c.epsilon * scale, whole=c.norm_over == "slot"
        )
        return origin + change

    def _restart(
        self, problem: SlotProblem, point: _Point, origin: Tensor, scale: float, noise: Tensor
    ) -> None:
        """Leave from the origin in a random direction of a given length, inside the set."""
        if self.config.space == "one_hot":
            noise = noise.masked_fill(~problem.allowed, 0.0)
        unit = noise / noise.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(noise.dtype).tiny)
        point.x = self._project(origin + self.config.restart_epsilon * scale * unit, origin, scale)
        point.moments, point.count = {}, 0

    # The model

    def _evaluate(
        self, problem: SlotProblem, ties: Sequence[Tie], point: _Point, *, last: bool
    ) -> None:
        """The loss of the variable and, unless it is the last, its gradient."""
        vectors = self._vectors(problem, point.x)
        if last:
            point.tie = sum(tie.value(vectors) for tie in ties) if ties else None
            found = problem.model.soft_losses([problem.rows_with(vectors)], [problem.target])
            point.loss, point.gradient = float(found.loss[0]), None
            point.finite = math.isfinite(point.loss)
            return
        gradient = problem.model.gradient(
            problem.segments.input_ids,
            problem.segments.slot_positions,
            problem.target,
            slot_embeddings=vectors,
            shared=len(problem.segments.before),
        )
        slope = gradient.slot.float().cpu()
        pulls = [tie.pull(vectors) for tie in ties]
        point.tie = sum(value for value, _ in pulls) if ties else None
        slope = slope + sum(pull for _, pull in pulls)
        point.loss = gradient.loss
        point.finite = gradient.finite and bool(slope.isfinite().all())
        point.gradient = slope
        if self.config.space == "one_hot":
            scores = problem.model.token_scores(slope).float().cpu()
            point.gradient = scores.masked_fill(~problem.allowed, 0.0)

    def _candidate(
        self, problem: SlotProblem, point: _Point, origin: Tensor, scale: float, *, restarted: bool
    ) -> Candidate:
        rows = problem.rows_with(self._vectors(problem, point.x))
        whole = self.config.norm_over == "slot"
        change = projections.norm_of(point.x - origin, self._norm(), whole=whole)
        note = {
            "restart": restarted,
            "scale": scale,
            "change": [round(float(v), 6) for v in change],
            "before": list(problem.segments.before),
            "after": list(problem.segments.input_ids[problem.segments.slot_positions[-1] + 1 :]),
            **({} if point.tie is None else {"tie": point.tie}),
        }
        return Candidate.of(
            ModelInput(embeddings=rows),
            point.loss if point.finite else None,
            state=point.state(),
            note=note,
            flags=() if point.finite else ("loss_not_finite",),
        )
