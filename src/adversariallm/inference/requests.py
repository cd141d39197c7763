"""What is asked of the engine and what it answers: token ids or embeddings in, token ids out.

Plain data; deliberately without text, chat templates or any notion of an attack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from adversariallm.core.budget import Usage
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import FinishReason
from adversariallm.inference.prefix import Prefix

Decode = Callable[[Sequence[int]], str]
Choose = Callable[[int, torch.Tensor], int]
"""Maps a position of the answer and its `[V]` float32 logits to the id that is taken."""


class Constraint(Protocol):
    """Decides, row by row, which ids may come next; stateful, one per generated sequence."""

    def mask(self) -> torch.Tensor | None:
        """`[V]` bool on the CPU, True where an id is allowed; None allows everything."""

    def accept(self, token: int) -> None:
        """Tell the constraint which id was taken."""

    @property
    def finished(self) -> bool:
        """Whether the constraint has nothing more to ask for, so that the row may end."""


@dataclass(frozen=True)
class Request:
    """One sequence to continue.

    Attributes:
        ids: the prompt's token ids; None where `embeddings` is given.
        embeddings: `[P, d]` rows that stand for the prompt, as the embedding module returns them.
        generation: decoding options; `num_return_sequences` is ignored (ask once per sample).
        rng: the stream of this sample; the draw at position t is `rng.uniform(t)`.
        stop_ids: ids that end the sequence; the id itself is kept in the answer.
        decode: ids to text, needed where `generation.stop` names strings.
        allowed: `[V]` bool, ids that may be generated; None allows all.
        constraint: makes a fresh `Constraint` (grammar, schema, repetition guard); helpers only.
        prefix: an already prefilled beginning of `ids`, shared by the algorithm's own definition:
            its cost is not charged here.
        choose: takes the ids instead of the decoding options; asked again, with the same logits,
            where the sequence had to start again for want of memory.
    """

    ids: tuple[int, ...] | None = None
    embeddings: torch.Tensor | None = None
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    rng: Rng | None = None
    stop_ids: frozenset[int] = frozenset()
    decode: Decode | None = None
    allowed: torch.Tensor | None = None
    constraint: Callable[[], Constraint] | None = None
    prefix: Prefix | None = None
    choose: Choose | None = None

    def __post_init__(self) -> None:
        """Refuse requests that have no defined answer."""
        if (self.ids is None) == (self.embeddings is None):
            raise ValueError("a request has either ids or embeddings")
        if self.length == 0:
            raise ValueError("the prompt is empty: give at least one token (usually BOS)")
        if self.generation.temperature > 0 and self.rng is None:
            raise ValueError(
                f"temperature={self.generation.temperature:g} needs a stream: "
                "pass rng=Rng.root(seed)"
            )
        if self.generation.stop and self.decode is None:
            raise ValueError("stop strings need a decode function: pass decode=tokenizer.decode")
        if self.allowed is not None and not bool(self.allowed.any()):
            raise ValueError("the vocabulary mask forbids every id: nothing could be generated")
        if self.prefix is not None and (
            self.ids is None or self.ids[: len(self.prefix)] != self.prefix.ids
        ):
            raise ValueError(
                f"the {len(self.prefix)} ids of the prefix are not the beginning of the prompt"
            )

    @property
    def sort_key(self) -> tuple[int, tuple[int, ...]]:
        """Orders requests so that long prompts come first and equal ones together."""
        return -self.length, self.ids or ()

    @property
    def length(self) -> int:
        """Number of prompt positions."""
        if self.ids is not None:
            return len(self.ids)
        assert self.embeddings is not None  # noqa: S101  one of the two is given
        return int(self.embeddings.shape[0])


@dataclass(frozen=True)
class Generation:
    """The continuation of one request.

    Attributes:
        ids: generated ids, the stop id kept.
        finish_reason: `stop` (stop id, or the constraint is complete), `stop_string`, `length`,
            `context` (the window is full) or `error`.
        log_probs: natural logarithm of the probability of each id under the model's own
            distribution (before temperature and filters), where asked for.
        stop_string: which string matched.
        error: a short code: `non_finite_logits` or `nothing_allowed`.
        usage: useful work, as if the request had been alone.
        executed: floating-point operations really done for it, padding included.
    """

    ids: tuple[int, ...]
    finish_reason: FinishReason
    log_probs: tuple[float, ...] | None = None
    stop_string: str | None = None
    error: str | None = None
    usage: Usage = Usage()
    executed: int = 0
