"""Ragged continuous decoding: rows leave when they finish and waiting rows take their place.

A row's ids depend on its request alone; which rows run together is decided here and changes
nothing. Nothing here knows text, beyond asking the request's own decode function for stop strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from adversariallm.core.errors import ContextLengthError
from adversariallm.core.types import FinishReason
from adversariallm.inference.cache import RaggedStore, StorePlan, key_width
from adversariallm.inference.flops import Architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.memory import is_out_of_memory
from adversariallm.inference.numerics import RowPolicy, padded_rows
from adversariallm.inference.prefill import Filling, Prefill
from adversariallm.inference.requests import Constraint, Generation, Request
from adversariallm.inference.sampling import choose, restrict


@dataclass
class Row:
    """A sequence in progress."""

    index: int
    request: Request
    context_length: int
    constraint: Constraint | None
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    stop_string: str | None = None
    error: str | None = None
    executed: int = 0
    reported: bool = False

    @property
    def position(self) -> int:
        """Where the last id goes when it is fed."""
        return self.request.length + max(0, len(self.ids) - 1)

    def take(self, logits: torch.Tensor) -> None:
        """Choose the next id from `[V]` float32 logits and see whether the row is finished."""
        options = self.request.generation
        if not bool(torch.isfinite(logits.max())):
            self.reason, self.error = "error", "non_finite_logits"
            return
        early = len(self.ids) < options.min_new_tokens
        masks = [self.request.allowed, self.constraint.mask() if self.constraint else None]
        scores = logits
        if early or any(m is not None for m in masks):
            scores = restrict(logits, masks, self.request.stop_ids if early else ())
            if not bool(torch.isfinite(scores.max())):
                self.reason, self.error = "error", "nothing_allowed"
                return
        if self.request.choose is not None:
            token = self.request.choose(len(self.ids), scores)
        else:
            token = choose(scores, options, self.request.rng, len(self.ids))
        self.ids.append(token)
        if options.log_probs:
            self.log_probs.append(float(logits[token] - torch.logsumexp(logits, dim=0)))
        if self.constraint is not None:
            self.constraint.accept(token)
        self.reason = self._finished(token)

    def _finished(self, token: int) -> FinishReason | None:
        options = self.request.generation
        if token in self.request.stop_ids:
            return "stop"
        if options.stop and len(self.ids) >= options.min_new_tokens and self._stopped():
            return "stop_string"
        if self.constraint is not None and self.constraint.finished:
            return "stop"
        if len(self.ids) >= options.max_new_tokens:
            return "length"
        if self.request.length + len(self.ids) >= self.context_length:
            return "context"
        return None

    def _stopped(self) -> bool:
        decode = self.request.decode
        text = decode(self.ids) if decode is not None else ""
        found = [(text.find(s), s) for s in self.request.generation.stop if s in text]
        self.stop_string = min(found)[1] if found else None
        return bool(found)

    def result(self, arch: Architecture) -> Generation:
        """The finished sequence."""
        cached = min(len(self.request.prefix or ()), self.request.length - 1)
        return Generation(
            ids=tuple(self.ids),
            finish_reason=self.reason or "error",
            log_probs=tuple(self.log_probs) if self.request.generation.log_probs else None,
            stop_string=self.stop_string,
            error=self.error,
            usage=arch.generation(self.request.length, len(self.ids), cached),
            executed=self.executed,
        )


def check_prompt(request: Request, context_length: int) -> None:
    """ContextLengthError where the prompt leaves no room for one token."""
    if request.length >= context_length:
        raise ContextLengthError(
            f"the prompt has {request.length} tokens, the model's context is {context_length}: "
            "shorten the prompt"
        )


class Decoder:
    """A running batch on one model that requests enter and leave; call inside `Forward.attached`.

    Not safe for threads; `queue.MicroBatcher` is.
    """

    def __init__(
        self, forward: Forward, arch: Architecture, policy: RowPolicy, max_rows: int
    ) -> None:
        """Decode at most `max_rows` sequences together."""
        self.forward, self.arch, self.policy, self.max_rows = forward, arch, policy, max_rows
        self.store = RaggedStore()
        self.rows: list[Row] = []  # row i of the store; finished rows stay until it is rearranged
        self.waiting: dict[int, Request] = {}

    def run(self, requests: Sequence[Request]) -> list[Generation]:
        """One generation per request, in order."""
        for i, request in enumerate(requests):
            self.submit(i, request)
        done: dict[int, Generation] = {}
        while self.busy:
            done.update(self.step())
        return [done[i] for i in range(len(requests))]

    def submit(self, key: int, request: Request) -> None:
        """Let `request` wait for a place; its result will be reported under `key`.

        Raises:
            ContextLengthError: the prompt leaves no room for one token.
        """
        check_prompt(request, self.forward.context_length)
        self.waiting[key] = request

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting) or bool(self._live())

    def step(self) -> dict[int, Generation]:
        """Let waiting requests in where that pays, and give every row one more id.

        When memory runs out the batch is halved, and unfinished rows start again with the same
        streams, so nothing changes but the time.

        Returns:
            What finished, by key.
        """
        try:
            self._admit()
            if self._live():
                self._advance()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or self.max_rows == 1:
                raise
            failed = True
        else:
            failed = False
        finished = {r.index: r.result(self.arch) for r in self.rows if r.reason and not r.reported}
        for row in self.rows:
            row.reported = row.reason is not None
        if failed:
            self.waiting.update({r.index: r.request for r in self._live()})
            self.max_rows = max(1, self.max_rows // 2)
            self.rows, self.store = [], RaggedStore()
        return finished

    def _live(self) -> list[Row]:
        return [r for r in self.rows if r.reason is None]

    def _next(self, count: int) -> list[Row]:
        """Take up to `count` waiting requests: longest first, equal prompts together, in order."""
        order = sorted(self.waiting, key=lambda k: (*self.waiting[k].sort_key, k))
        return [self._new_row(k, self.waiting.pop(k)) for k in order[:count]]

    def _admit(self) -> None:
        """Fill free places when enough are free; drop finished rows when that saves a tile."""
        live = self._live()
        room = self.max_rows - len(live)
        worth = not live or room >= min(len(self.waiting), max(1, self.max_rows // 4))
        fresh = self._next(room) if worth else []
        tiles = self.policy.decode
        if not fresh and padded_rows(len(live), tiles) >= padded_rows(len(self.rows), tiles):
            return
        filling = Prefill(self.forward, self.arch, self.policy)
        prompts = [Filling(r.request.ids, r.request.embeddings, r.request.prefix) for r in fresh]
        try:
            self._arrange(live, fresh, filling.room(prompts))
            logits, executed = filling(self.store, len(live), prompts)
        except BaseException:
            self.waiting.update({r.index: r.request for r in fresh})
            self.rows = live
            raise
        for row, scores in zip(fresh, logits, strict=True):
            row.executed += executed // len(fresh)
            row.take(scores)

    def _new_row(self, index: int, request: Request) -> Row:
        constraint = request.constraint() if request.constraint else None
        return Row(index, request, self.forward.context_length, constraint)

    def _arrange(self, live: list[Row], fresh: list[Row], room: int) -> None:
        """Keep live rows, longest first, then fresh ones."""
        live.sort(key=lambda r: -r.position)
        old = {id(r): i for i, r in enumerate(self.rows)}
        order: list[int | None] = [*(old[id(r)] for r in live), *[None] * len(fresh)]
        width = max([room, *(key_width(r.position + 1) for r in live)])
        self.store.rearrange(order, width)
        self.rows = [*live, *fresh]

    def _advance(self) -> None:
        """Feed every row's last id and take its next one."""
        rows = self.rows
        count = padded_rows(len(rows), self.policy.decode)
        ends = [r.position + 1 for r in rows]
        needed = max(map(key_width, ends))
        if needed > self.store.width:
            self.store.rearrange(list(range(len(rows))), needed)
        padding = [0] * (count - len(rows))
        last = [r.ids[-1] if r.ids else 0 for r in rows] + padding
        positions = torch.tensor([r.position for r in rows] + padding)[:, None]
        logits = self.forward(
            StorePlan(self.store, 0, positions[: len(rows)], list(map(key_width, ends))),
            positions,
            ids=torch.tensor(last, device=self.forward.device)[:, None],
            products=self.policy.decoding,
        )
        width = self.store.width
        executed = self.arch.products(count) + self.arch.projection(count)
        executed += len(rows) * self.arch.attention(1, width - 1, square=True)
        live = self._live()
        for i, row in enumerate(rows):
            if row.reason is None:
                row.executed += executed // len(live)
                row.take(logits[i].float())
