"""Perplexity filter: a prompt that reads like noise is not answered.

Source: Alon and Kamfonas 2023, arXiv 2308.14132 (whole prompt); Jain et al. 2023, arXiv 2309.00614,
section 4.1 (whole prompt and windows) and 5 (adaptive attack). Deviations: see `INFO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from pydantic import Field

from adversariallm.core.budget import Usage
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError
from adversariallm.core.protocols import (
    ChatModel,
    DefenseInfo,
    Gradient,
    Losses,
    Needs,
    Objective,
    Supplies,
    Wanted,
    WhiteBoxModel,
    Work,
)
from adversariallm.core.types import Reply
from adversariallm.defenses._kit.defended import Ask, Defended, bare, check_model
from adversariallm.defenses._kit.perplexity import Measured, Perplexity, calibrated
from adversariallm.defenses._kit.replies import WITHHELD, charged, marked, withheld
from adversariallm.defenses._kit.requests import Request
from adversariallm.defenses._kit.surrogate import PromptFinder, TokenScores

INFO = DefenseInfo(
    name="perplexity_filter",
    summary="a user message of too high perplexity, whole or in a window, is not answered",
    source="Alon and Kamfonas 2023, arXiv 2308.14132; Jain et al. 2023, arXiv 2309.00614",
    reference_code=None,
    passes=Needs.TEXT | Needs.TOKENS | Needs.LOGITS | Needs.GRADIENTS,
    deviations=(
        "every user message is measured alone; the highest value counts",
        "windows are scored in the context of what precedes them; the last one ends with the text",
        "the threshold is calibrated on benign prompts to a stated rate of false positives",
        "an adaptive attacker's loss has a hinge on what exceeds the threshold; its gradient has "
        "how unlikely each token is at the slot, as a direction in the embedding space",
    ),
)


class Config(FrozenConfig):
    """Options; the only place where their defaults stand."""

    window: int | None = Field(
        None, ge=1, description="tokens of a window; null measures whole messages"
    )
    threshold: float | None = Field(
        None, gt=0, description="nats per token above which nothing is answered; null calibrates"
    )
    false_positive_rate: float = Field(
        0.05, ge=0, lt=0.5, description="share of the calibration prompts that may be stopped"
    )
    calibration: str = Field(
        "starter_benign", description="data set of benign prompts for the threshold"
    )
    scorer: Literal["model", "helper"] = Field(
        "model", description="who measures: the protected model, or helpers.defense"
    )
    penalty: float = Field(
        1.0, ge=0, description="weight of the excess in the loss that an adaptive attacker sees"
    )
    refusal: str = Field(WITHHELD, description="what is said instead of an answer")

    def wanted(self) -> Wanted:
        """A model that gives probabilities, and prompts to calibrate on."""
        data: dict[str, dict[str, Any]] = (
            {} if self.threshold is not None else {self.calibration: {}}
        )
        if self.scorer == "model":
            return Wanted(model=Needs.TOKENS | Needs.LOGITS, datasets=data)
        return Wanted(
            helpers={"defense": "measures perplexity"},
            helper_needs={"defense": Needs.TOKENS | Needs.LOGITS},
            datasets=data,
        )


class Filtered(Defended):
    """The model behind the filter.

    Attributes:
        threshold: nats per token.
    """

    config: Config

    def __init__(
        self, model: ChatModel, config: Config, measure: Perplexity, threshold: float, spent: Usage
    ) -> None:
        """Answer only what `measure` puts at or below `threshold`; finding it cost `spent`."""
        super().__init__(model, INFO, config, preparation=spent)
        self.measure = measure
        self.threshold = threshold

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """Answers to what is below the threshold, the refusal for all else."""
        messages = [
            [m.content for m in request.conversation if m.role == "user"] for request in requests
        ]
        found = iter(self.measure([text for texts in messages for text in texts]))
        measured = [[next(found) for _ in texts] for texts in messages]
        highest = [_highest(rows) for rows in measured]
        passing = [value is not None and value <= self.threshold for value in highest]
        asked = iter(ask([r for r, good in zip(requests, passing, strict=True) if good]))
        replies = [
            marked(next(asked), INFO.name, **self._facts(value)) if good else self._stopped(value)
            for value, good in zip(highest, passing, strict=True)
        ]
        return [
            charged(reply, [m.usage for m in rows])
            for reply, rows in zip(replies, measured, strict=True)
        ]

    def _facts(self, value: float | None) -> dict[str, Any]:
        return {"log_perplexity": value, "threshold": self.threshold}

    def _stopped(self, value: float | None) -> Reply:
        error = "context_length" if value is None else None
        reason = "perplexity" if error is None else "the message does not fit the scorer's context"
        return withheld(INFO.name, self.config.refusal, reason, error=error, **self._facts(value))

    # What an adaptive attacker sees

    @cached_property
    def _prompt_of(self) -> PromptFinder:
        return PromptFinder(self.chat)

    @cached_property
    def _token_scores(self) -> TokenScores:
        return TokenScores(self.embedding_matrix().cpu())

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """The model's losses, plus the penalty on what exceeds the threshold."""
        found = super().losses(inputs, targets, objective=objective, shared=shared)
        measured = self.measure([self._prompt_of(tuple(ids)) for ids in inputs])
        excess = torch.tensor([self._excess(m) for m in measured])
        work = _joined(found.work, [m.usage for m in measured])
        return replace(found, loss=found.loss + self.config.penalty * excess, work=work)

    def _excess(self, measured: Measured) -> float:
        """Nats per token above the threshold; infinite for what the scorer cannot read."""
        if measured.value is None:
            return float("inf")
        return max(0.0, measured.value - self.threshold)

    def gradient(
        self,
        input_ids: Sequence[int],
        slot: Sequence[int],
        target: Sequence[int],
        *,
        objective: Objective | None = None,
        slot_embeddings: torch.Tensor | None = None,
        shared: int = 0,
    ) -> Gradient:
        """The model's gradient, plus how unlikely each token would be at each slot position.

        The second part needs the filter to measure with this very model; else the first one stands
        alone, and candidates are told apart by their losses.
        """
        found = super().gradient(
            input_ids,
            slot,
            target,
            objective=objective,
            slot_embeddings=slot_embeddings,
            shared=shared,
        )
        if self.measure.model is not bare(self.model) or not self.config.penalty or not slot:
            return found
        unlikely, work = self._unlikely(tuple(input_ids), slot, shared)
        slope = found.slot + self._token_scores.direction(unlikely).to(found.slot.device)
        spent = [work.usage, work.shared]
        return replace(
            found,
            slot=slope,
            finite=found.finite and bool(slope.isfinite().all()),
            work=_joined(found.work, spent, executed=work.executed),
        )

    def _unlikely(
        self, ids: tuple[int, ...], slot: Sequence[int], shared: int
    ) -> tuple[torch.Tensor, Work]:
        """`[n, V]` what each token would add to the penalty at each slot position, and its work.

        One evaluation gives the distributions at all positions: the slot is its target.
        """
        first = min(slot)
        seen: list[torch.Tensor] = []

        def keep(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            seen.append(logits[0].float().cpu())
            return logits.new_zeros(len(logits))

        found = super().losses(
            [ids[:first]], [ids[first : max(slot) + 1]], objective=keep,
            shared=min(shared, first - 1),
        )  # fmt: skip
        rows = seen[-1][[at - first for at in slot]].log_softmax(-1)
        length = max(1, len(self.measure.ids(self._prompt_of(ids))))
        return -rows * (self.config.penalty / length), found.work


def _joined(work: Work, more: Sequence[Usage], *, executed: int = 0) -> Work:
    usage = sum(more, work.usage)
    return replace(work, usage=usage, rows=(), executed=work.executed + executed)


def _highest(measured: Sequence[Measured]) -> float | None:
    """The highest value; None where one is unknown."""
    values = [m.value for m in measured]
    known = [v for v in values if v is not None]
    return None if len(known) < len(values) else max(known, default=0.0)


def wrap(model: ChatModel, config: Config, supplies: Supplies) -> ChatModel:
    """The model behind the filter, its threshold calibrated where none is given.

    Raises:
        NeedsError: the model gives no probabilities and is to be the scorer.
        ConfigError: the calibration prompts are harmful, or none can be measured.
    """
    check_model(model, INFO, config)
    scorer = bare(model) if config.scorer == "model" else supplies.helpers["defense"]
    measure = Perplexity(cast("WhiteBoxModel", scorer), config.window)
    if config.threshold is not None:
        return Filtered(model, config, measure, config.threshold, Usage())
    prompts = supplies.datasets[config.calibration]
    if any(behavior.harmful for behavior in prompts):
        raise ConfigError(
            f"defenses.perplexity_filter.calibration={config.calibration!r} holds harmful prompts: "
            "choose a benign data set"
        )
    texts = [m.content for b in prompts for m in b.conversation if m.role == "user"]
    measured = measure(texts)
    values = [m.value for m in measured if m.value is not None]
    if not values:
        raise ConfigError(
            f"defenses.perplexity_filter.calibration={config.calibration!r}: no prompt of it fits "
            "the scorer's context"
        )
    threshold = calibrated(values, config.false_positive_rate)
    return Filtered(model, config, measure, threshold, sum((m.usage for m in measured), Usage()))
