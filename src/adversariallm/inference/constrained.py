"""Constraints on generated ids, row by row: a JSON schema, a guard against endless repetition.

For attackers, judges and other helpers only; the model under test is never constrained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance import hf as llguidance_hf
from llguidance import numpy as llguidance_numpy

from adversariallm.core.errors import ModelError
from adversariallm.inference.requests import Constraint


class JsonSchema:
    """Makes constraints that let only JSON of one schema through."""

    def __init__(self, tokenizer: Any, num_embeddings: int, schema: Mapping[str, Any]) -> None:
        """Compile the schema once.

        Args:
            tokenizer: a fast tokenizer of transformers.
            num_embeddings: V, the number of logits.
            schema: JSON schema (draft 2020-12, as far as llguidance reads it).

        Raises:
            ModelError: the schema cannot be compiled.
        """
        self._tokenizer: LLTokenizer = llguidance_hf.from_tokenizer(tokenizer, num_embeddings)
        self._grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), defaults={"whitespace_flexible": False}
        )
        problem = LLMatcher.validate_grammar(self._grammar, self._tokenizer)
        if problem:
            raise ModelError(f"the JSON schema cannot be compiled: {problem}")

    def __call__(self) -> Constraint:
        """A fresh constraint for one sequence."""
        return _Grammar(LLMatcher(self._tokenizer, self._grammar), self._tokenizer.vocab_size)


class _Grammar:
    """A position in a grammar."""

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher, self._size = matcher, size
        self._bits = llguidance_numpy.allocate_token_bitmask(1, size)

    def mask(self) -> torch.Tensor:
        llguidance_numpy.fill_next_token_bitmask(self._matcher, self._bits)
        shifts = torch.arange(32, dtype=torch.int32)
        bits = (torch.from_numpy(self._bits[0])[:, None] >> shifts) & 1
        return bits.flatten()[: self._size].bool()

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    @property
    def finished(self) -> bool:
        return bool(self._matcher.is_stopped())


class RepetitionGuard:
    """Forbids the id that would repeat the same stretch once too often."""

    def __init__(self, times: int = 6, longest: int = 16) -> None:
        """Allow a stretch of up to `longest` ids to follow itself `times` times."""
        self._times, self._longest = times, longest
        self._ids: list[int] = []
        self._size = 0

    def forbidden(self) -> set[int]:
        """Ids that may not come next."""
        out = set()
        for period in range(1, self._longest + 1):
            needed = period * self._times
            tail = self._ids[-needed:]
            # `times` whole copies are there: a further one must not begin
            if len(tail) == needed and all(
                tail[i] == tail[i - period] for i in range(period, needed)
            ):
                out.add(tail[-period])
        return out

    def mask(self) -> torch.Tensor | None:
        """True everywhere but at forbidden ids, or None."""
        forbidden = self.forbidden()
        if not forbidden:
            return None
        out = torch.ones(self._size or max(forbidden) + 1, dtype=torch.bool)
        out[list(forbidden)] = False
        return out

    def accept(self, token: int) -> None:
        """Remember the id."""
        self._ids.append(token)

    @property
    def finished(self) -> bool:
        """Never."""
        return False

    def sized(self, size: int) -> RepetitionGuard:
        """Give masks of `size` entries."""
        self._size = size
        return self


class Guarded:
    """A constraint with a repetition guard that gives way where it would leave nothing."""

    def __init__(self, inner: Constraint | None, guard: RepetitionGuard) -> None:
        """Join the two; `inner` may be None."""
        self._inner, self._guard = inner, guard

    def mask(self) -> torch.Tensor | None:
        """What both allow, or what the inner one allows where that is nothing."""
        allowed = self._inner.mask() if self._inner is not None else None
        guard = self._guard.mask()
        if allowed is None or guard is None:
            return guard if allowed is None else allowed
        both = allowed.clone()
        size = min(len(both), len(guard))
        both[:size] &= guard[:size]
        return both if bool(both.any()) else allowed

    def accept(self, token: int) -> None:
        """Tell both."""
        self._guard.accept(token)
        if self._inner is not None:
            self._inner.accept(token)

    @property
    def finished(self) -> bool:
        """Whether the inner constraint is complete."""
        return self._inner is not None and self._inner.finished


def guarded(
    num_embeddings: int, inner: Callable[[], Constraint] | None = None, *, times: int = 6
) -> Callable[[], Constraint]:
    """A maker of constraints: `inner` (a `JsonSchema`, or nothing) with a repetition guard."""

    def make() -> Constraint:
        guard = RepetitionGuard(times).sized(num_embeddings)
        return Guarded(inner() if inner is not None else None, guard)

    return make


__all__: Sequence[str] = ["Guarded", "JsonSchema", "RepetitionGuard", "guarded"]
