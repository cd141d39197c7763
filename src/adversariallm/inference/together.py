"""Continuations of one prompt that look at each other: whoever takes an id knows the others' ids.

The decoder keeps one cache per sequence, so every position is computed once. How many sequences run
together is the decoder's affair and changes nothing: sequence k takes its id at a position after
the sequences before it took theirs there, and after its own earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from adversariallm.core.budget import Usage
from adversariallm.core.directions import Account
from adversariallm.core.errors import ModelError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Work
from adversariallm.inference.decode import Decoder, Row
from adversariallm.inference.flops import Architecture
from adversariallm.inference.requests import Request

Chooser = Callable[[int, int, torch.Tensor], int]
"""Maps sequence, position and `[V]` float32 logits to an id; the same id where asked again."""


def side_by_side(ids: Sequence[int], count: int, length: int, choose: Chooser) -> list[Request]:
    """One request for each continuation, exactly `length` ids long."""
    options = GenerationConfig(max_new_tokens=length, temperature=0)
    return [
        Request(tuple(ids), generation=options, choose=partial(choose, k)) for k in range(count)
    ]


def decode_together(
    decoder: Decoder, requests: Sequence[Request], arch: Architecture, account: Account | None
) -> list[tuple[int, ...]]:
    """The ids of every continuation; call inside `Engine.session`.

    Useful work is that of sequences which share their prompt by definition: the prompt once, and
    of each sequence every id that is fed back. A sequence is one query, booked with its last id.

    Raises:
        BudgetExceededError: a limit is reached between two positions.
        ModelError: logits are not finite.
    """
    for k, request in enumerate(requests):
        decoder.submit(k, request)
    booked: dict[int, tuple[int, int]] = {}  # ids and executed operations of each sequence
    done: dict[int, tuple[int, ...]] = {}
    prompt = arch.usage(requests[0].length, 0, 1, queries=0) if requests else Usage()
    while decoder.busy:
        if account is not None:
            account.ask(len(requests) - len(done))
        for k, found in decoder.step().items():
            if found.error:
                raise ModelError(
                    f"sequence {k} of {len(requests)} ended after {len(found.ids)} ids: "
                    f"{found.error}; expected finite logits, check the model's weights and dtype"
                )
            done[k] = found.ids
        usage, executed = prompt, 0
        for row in decoder.rows:
            before, spent = booked.get(row.index, (0, 0))
            booked[row.index] = (max(before, len(row.ids)), max(spent, row.executed))
            usage = usage + _fed(row, before, arch)
            executed += max(0, row.executed - spent)
        if account is not None:
            account.book(Work(usage, executed=executed))
        prompt = Usage()
    return [done[k] for k in range(len(requests))]


def _fed(row: Row, before: int, arch: Architecture) -> Usage:
    """Useful work of a sequence's ids after the first `before`."""
    new = range(before, len(row.ids))
    total = Usage(tokens_generated=len(new))
    for position in new:
        if position:  # the first id is taken from the prompt's own logits
            cost = arch.usage(1, row.request.length + position - 1, 1, queries=0)
            total = total + replace(cost, tokens_cached=0)
    last = len(row.ids) == row.request.generation.max_new_tokens
    return total + Usage(queries=int(last and len(new) > 0))
