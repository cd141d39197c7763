"""BEAST: grow a suffix token by token with a beam search over the model's own distribution.

Source: Sadasivan et al. 2024, "Fast Adversarial Attacks on Language Models In One GPU Minute"
(arXiv 2402.15570), Algorithm 1; vinusankars/BEAST. The next token is drawn from the distribution at
the end of the suffix, before any of the template's closing ids.

Deviations from the reference code: candidates are distinct and reachable as text; the score is the
mean target cross-entropy (a monotone function of the paper's perplexity) in float32; special tokens
are never drawn; the conversation is tokenized as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from adversariallm.attacks._kit.proposals import distinct_multinomial
from adversariallm.attacks._kit.ranking import nan_flags, numbers
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import AttackInfo, Context, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Candidate, State, Task
from adversariallm.tokenization import Slot

INFO = AttackInfo(
    name="beast",
    summary="beam search over tokens the model itself finds likely",
    source="Sadasivan et al. 2024, arXiv 2402.15570",
    reference_code="vinusankars/BEAST",
    needs=Needs.TEXT | Needs.TOKENS | Needs.LOGITS,
    modality="suffix",
    target="required",
    version=2,
    quick={"num_tokens": 4, "k1": 3, "k2": 3},
    deviations=(
        "candidates are distinct and reachable as text",
        "special tokens are never drawn",
    ),
)
RESAMPLES = 4

Beam = tuple[int, ...]


class Config(FrozenConfig):
    """Options; defaults are those of the reference code."""

    num_tokens: int = Field(
        40,
        ge=1,
        description="tokens of the suffix, one per step",
        json_schema_extra={"extends": True},
    )
    k1: int = Field(15, ge=1, description="beams kept, and tokens drawn at the first step")
    k2: int = Field(15, ge=1, description="tokens drawn for each beam at the later steps")
    temperature: float = Field(1.0, gt=0, description="of the proposal distribution")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus of the proposal distribution")
    top_k: int | None = Field(None, ge=1, description="most likely tokens considered")
    initial: str = Field("", description="text that every beam starts with")
    allow_non_ascii: bool = Field(True, description="also use tokens that are not printable ASCII")


class Attack:
    """Beam search for a suffix."""

    def __init__(self, config: Config) -> None:
        """Keep the options."""
        self.config = config

    def search(self, task: Task, ctx: Context) -> Iterator[Candidate]:
        """Yield the clean prompt, then the best suffix of each length."""
        c = self.config
        problem = SlotProblem.build(
            ctx.model,
            task.behavior,
            Slot("suffix", c.initial),
            allow_non_ascii=c.allow_non_ascii,
        )
        start: Beam = problem.segments.slot_ids
        if ctx.state is None:
            losses = torch.tensor([float(problem.losses([start]).loss[0])])
            beams = [start]
            best = float(losses[0])
            yield self._candidate(problem, beams, losses, best, {})
            first = 1
        else:
            beams = [tuple(b) for b in ctx.state.values["beams"]]
            losses = torch.tensor(ctx.state.values["losses"])
            best, first = ctx.state.values["best"], ctx.state.step + 1
        for step in range(first, c.num_tokens + 1):
            rng = ctx.rng.child("step", step)
            per_beam = c.k1 if beams == [start] else c.k2
            here = problem.moved(beams[0])
            grown, counts = self._grow(here, beams, per_beam, rng)
            found, found_losses, flags = self._best(here, grown)
            if found:
                beams, losses = found, found_losses
                # a start that has no number is beaten by any
                best = float(losses[0]) if math.isnan(best) else min(best, float(losses[0]))
            yield self._candidate(problem, beams, losses, best, counts, flags)

    def _best(
        self, problem: SlotProblem, grown: list[Beam]
    ) -> tuple[list[Beam], Tensor, tuple[str, ...]]:
        """The best `k1` of these beams with their losses, best first, and the step's flags."""
        if not grown:
            return [], torch.empty(0), ("no_reachable_candidate",)
        losses = problem.losses(grown).loss
        order = numbers(losses)[: self.config.k1]
        return [grown[i] for i in order.tolist()], losses[order], nan_flags(losses)

    def _grow(
        self, problem: SlotProblem, beams: list[Beam], per_beam: int, rng: Rng
    ) -> tuple[list[Beam], dict[str, int]]:
        """Distinct, reachable beams one token longer, and counts for the record."""
        probs = self._distribution(problem, beams)
        seen: dict[Beam, None] = {}
        kept: list[Beam] = []
        counts = {"sampled": 0, "kept": 0, "resampled": 0}
        for attempt in range(RESAMPLES):
            generator = rng.child("proposal", attempt).torch()
            drawn = distinct_multinomial(probs, per_beam, generator)
            grown = [(*b, int(t)) for b, ids in zip(beams, drawn, strict=True) for t in ids]
            fresh = [g for g in grown if g not in seen]
            seen.update(dict.fromkeys(fresh))
            if fresh:
                rows, found = problem.reachable(torch.tensor(fresh))
                kept += [tuple(r) for r in rows.tolist()]
                counts["sampled"] += found["sampled"]
                counts["kept"] += found["kept"]
            counts["resampled"] = attempt
            if len(kept) >= min(self.config.k1, len(seen)):
                break
        return kept, counts

    def _distribution(self, problem: SlotProblem, beams: list[Beam]) -> Tensor:
        """`[beams, V]` float32 probabilities of the next suffix token."""
        c = self.config
        before = problem.segments.before
        shared = len(before) if beams[0] else 0  # an empty suffix leaves nothing but the prefix
        found = problem.model.next_logits([(*before, *b) for b in beams], shared=shared)
        logits = (found.logits.float().cpu() / c.temperature).masked_fill(
            ~problem.allowed, -torch.inf
        )
        if c.top_k is not None:
            floor = logits.topk(min(c.top_k, logits.shape[1])).values[:, -1:]
            logits = logits.masked_fill(logits < floor, -torch.inf)
        probs = logits.softmax(-1)
        if c.top_p < 1:
            ranked, order = probs.sort(descending=True, stable=True)
            outside = (ranked.cumsum(-1) - ranked) >= c.top_p
            probs = probs.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), 0)
        return probs

    @staticmethod
    def _candidate(
        problem: SlotProblem,
        beams: list[Beam],
        losses: Tensor,
        best: float,
        counts: dict[str, int],
        flags: tuple[str, ...] = (),
    ) -> Candidate:
        values = {"beams": [list(b) for b in beams], "losses": losses.tolist(), "best": best}
        return Candidate.of(
            problem.at(torch.tensor(beams[0], dtype=torch.long)),
            float(losses[0]),
            state=State(values),
            note={**counts, "best_so_far": best},
            flags=flags,
        )
