"""Continuations that look at each other: their order, their cost, and what changes neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adversariallm.core.budget import Usage
from adversariallm.core.directions import Account
from adversariallm.core.errors import ContextLengthError, ModelError
from adversariallm.inference import Engine
from adversariallm.inference.decode import Decoder
from adversariallm.inference.together import decode_together, side_by_side

from .conftest import random_ids

Engines = Callable[..., Engine]
PROMPT = random_ids([21])[0]
COUNT, LENGTH = 5, 4


class Diverse:
    """No sequence takes an id that one before it has at the same position."""

    def __init__(self) -> None:
        self.taken: dict[tuple[int, int], int] = {}
        self.asked: list[tuple[int, int]] = []

    def __call__(self, k: int, position: int, logits_V: torch.Tensor) -> int:
        self.asked.append((k, position))
        earlier = [self.taken[i, position] for i in range(k)]
        self.taken[k, position] = int(
            logits_V.index_fill(0, torch.tensor(earlier).long(), -99).argmax()
        )
        return self.taken[k, position]


class Paying:
    """Adds up what is booked."""

    def __init__(self, limit: int = 10**9) -> None:
        self.limit = limit
        self.usage, self.executed = Usage(), 0
        self.asked: list[int] = []

    def account(self) -> Account:
        return Account(self.ask, self.book)

    def ask(self, queries: int) -> None:
        self.asked.append(queries)
        if self.usage.tokens_processed >= self.limit:
            raise InterruptedError

    def book(self, work: Any) -> None:
        self.usage, self.executed = self.usage + work.usage, self.executed + work.executed


def by_definition(engine: Engine) -> list[tuple[int, ...]]:
    """One sequence after the other, each position with a full forward."""
    choose = Diverse()
    rows = []
    for k in range(COUNT):
        row: tuple[int, ...] = ()
        for position in range(LENGTH):
            logits = engine.next_logits(engine.prefix(()), [(*PROMPT, *row)]).logits[0]
            row = (*row, choose(k, position, logits))
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_ids_are_those_of_sequences_computed_one_after_the_other(
    engines: Engines, name: str
) -> None:
    engine = engines(name)
    assert engine.decode_together(PROMPT, COUNT, LENGTH, Diverse(), None) == by_definition(engine)


def test_the_work_is_the_prompt_once_and_every_id_that_is_fed_back(engines: Engines) -> None:
    engine, paying = engines("llama"), Paying()
    engine.decode_together(PROMPT, COUNT, LENGTH, Diverse(), paying.account())
    usage, arch = paying.usage, engine.arch
    fed = COUNT * (LENGTH - 1)
    assert (usage.queries, usage.tokens_generated) == (COUNT, COUNT * LENGTH)
    assert (usage.tokens_processed, usage.tokens_cached) == (len(PROMPT) + fed, 0)
    assert usage.forward_passes == 1 + fed
    steps = sum(arch.forward(1, len(PROMPT) + i, 1) for i in range(LENGTH - 1))
    assert usage.flops == arch.forward(len(PROMPT), 0, 1) + COUNT * steps
    assert paying.executed >= usage.flops
    assert paying.asked[0] == COUNT


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_how_many_run_together_changes_neither_ids_nor_cost(engines: Engines, rows: int) -> None:
    engine, paying, whole = engines("qwen2"), Paying(), Paying()
    expected = engine.decode_together(PROMPT, COUNT, LENGTH, Diverse(), whole.account())
    choose = Diverse()
    with engine.session(), torch.no_grad():
        decoder = Decoder(engine.forward, engine.arch, engine.policy, rows)
        requests = side_by_side(PROMPT, COUNT, LENGTH, choose)
        found = decode_together(decoder, requests, engine.arch, paying.account())
    assert found == expected
    assert paying.usage == whole.usage
    for k, position in choose.asked:
        where = choose.asked.index((k, position))
        assert all(choose.asked.index((i, position)) < where for i in range(k))


def test_running_out_of_memory_changes_neither_ids_nor_cost(engines: Engines) -> None:
    engine, paying, whole = engines("qwen2"), Paying(), Paying()
    expected = engine.decode_together(PROMPT, COUNT, LENGTH, Diverse(), whole.account())
    calls = iter(range(1000))

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.forward, name)

        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            if next(calls) > 2 and args[1].shape[1] == 1 and len(args[0].index) > 2:
                raise torch.OutOfMemoryError("simulated")
            return engine.forward(*args, **kwargs)

    with engine.session(), torch.no_grad():
        decoder = Decoder(engine.forward, engine.arch, engine.policy, 64)
        decoder.forward = Failing()  # type: ignore[assignment]
        requests = side_by_side(PROMPT, COUNT, LENGTH, Diverse())
        assert decode_together(decoder, requests, engine.arch, paying.account()) == expected
    assert decoder.max_rows <= 2
    assert paying.usage == whole.usage


def test_a_limit_ends_it_between_two_positions_and_what_was_done_is_booked(
    engines: Engines,
) -> None:
    engine, paying = engines("llama"), Paying(limit=len(PROMPT))
    with pytest.raises(InterruptedError):
        engine.decode_together(PROMPT, COUNT, LENGTH, Diverse(), paying.account())
    assert len(PROMPT) <= paying.usage.tokens_processed < len(PROMPT) + COUNT * (LENGTH - 1)


def test_what_does_not_fit_is_refused(engines: Engines) -> None:
    engine = engines("llama")
    with pytest.raises(ContextLengthError, match="do not fit the model's context"):
        engine.decode_together(PROMPT, COUNT, engine.context_length, Diverse(), None)


def test_logits_that_are_not_finite_are_an_error(engines: Engines) -> None:
    engine = engines("llama")

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.forward, name)

        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return engine.forward(*args, **kwargs) * torch.nan

    with engine.session(), torch.no_grad():
        decoder = Decoder(engine.forward, engine.arch, engine.policy, 8)
        decoder.forward = Broken()  # type: ignore[assignment]
        requests = side_by_side(PROMPT, COUNT, LENGTH, Diverse())
        with pytest.raises(ModelError, match=r"sequence 0 of 5 ended after 0 ids.*non_finite"):
            decode_together(decoder, requests, engine.arch, None)
