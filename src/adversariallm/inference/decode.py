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


class Decoder:
    """Runs requests to their end on one model; use once, inside `Forward.attached`."""

    def __init__(
        self, forward: Forward, arch: Architecture, policy: RowPolicy, max_rows: int
    ) -> None:
        """Decode at most `max_rows` sequences together."""
        self.forward, self.arch, self.policy, self.max_rows = forward, arch, policy, max_rows
        self.store = RaggedStore()
        self.rows: list[Row] = []  # row i of the store; finished rows stay until it is rearranged

    def run(self, requests: Sequence[Request]) -> list[Generation]:
        """One generation per request, in order."""
        for i, request in enumerate(requests):
            if request.length >= self.forward.context_length:
                raise ContextLengthError(
                    f"request {i}: the prompt has {request.length} tokens, the model's context "
                    f"{self.forward.context_length}: shorten the prompt"
                )
        waiting = sorted(
            range(len(requests)), key=lambda i: (-requests[i].length, requests[i].ids or ())
        )
        waiting.reverse()  # taken from the end: longest first, equal prompts together
        done: dict[int, Generation] = {}
        while waiting or self._live():
            try:
                self._admit(waiting, requests)
                if self._live():
                    self._step()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.max_rows == 1:
                    raise
                failed = True
            else:
                failed = False
            for row in self.rows:
                if row.reason is not None and row.index not in done:
                    done[row.index] = row.result(self.arch)
            if failed:
                waiting.extend(r.index for r in self._live())
                self.max_rows = max(1, self.max_rows // 2)
                self.rows, self.store = [], RaggedStore()
        return [done[i] for i in range(len(requests))]

    def _live(self) -> list[Row]:
        return [r for r in self.rows if r.reason is None]

    def _admit(self, waiting: list[int], requests: Sequence[Request]) -> None:
        """Fill free places when enough are free; drop finished rows when that saves a tile."""
        live = self._live()
        room = self.max_rows - len(live)
        worth = not live or room >= min(len(waiting), max(1, self.max_rows // 4))
        taken = [waiting.pop() for _ in range(min(room, len(waiting)))] if waiting and worth else []
        fresh = [self._new_row(i, requests[i]) for i in taken]
        if not fresh and padded_rows(max(1, len(live)), self.policy.decode) >= self.store.rows:
            return
        filling = Prefill(self.forward, self.arch, self.policy)
        order = sorted(fresh, key=lambda r: -r.request.length)
        prompts = [Filling(r.request.ids, r.request.embeddings, r.request.prefix) for r in order]
        self._arrange(live, order, filling.room(prompts))
        if prompts:
            logits, executed = filling(self.store, len(live), prompts)
            for row, scores in zip(order, logits, strict=True):
                row.executed += executed // len(order)
                row.take(scores)

    def _new_row(self, index: int, request: Request) -> Row:
        constraint = request.constraint() if request.constraint else None
        return Row(index, request, self.forward.context_length, constraint)

    def _arrange(self, live: list[Row], fresh: list[Row], room: int) -> None:
        """Keep live rows, longest first, then fresh ones, then rows that only fill the tile."""
        live.sort(key=lambda r: -r.position)
        old = {id(r): i for i, r in enumerate(self.rows)}
        count = padded_rows(max(1, len(live) + len(fresh)), self.policy.decode)
        order: list[int | None] = [old[id(r)] for r in live]
        order += [None] * (count - len(live))
        width = max([room, *(key_width(r.position + 1) for r in live)])
        self.store.rearrange(order, width)
        self.rows = [*live, *fresh]

    def _step(self) -> None:
        """Feed every row's last id and take its next one."""
        rows, count = self.rows, self.store.rows
        needed = max(key_width(r.position + 1) for r in rows)
        if needed > self.store.width:
            self.store.rearrange(list(range(count)), needed)
        spare = count - len(rows)
        last = [r.ids[-1] if r.ids else 0 for r in rows] + [0] * spare
        positions = torch.tensor([r.position for r in rows] + [0] * spare)[:, None]
        logits = self.forward(
            StorePlan(self.store, 0, positions),
            positions,
            ids=torch.tensor(last, device=self.forward.device)[:, None],
            tiles=self.policy.decode,
        )
        width = self.store.width
        executed = self.arch.products(count) + self.arch.projection(count)
        executed += count * self.arch.attention(1, width - 1, square=True)
        live = self._live()
        for i, row in enumerate(rows):
            if row.reason is None:
                row.executed += executed // len(live)
                row.take(logits[i].float())
