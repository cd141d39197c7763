"""The engine: everything the package computes on a bare causal language model, behind one object.

It knows nothing of chat templates, attacks, limits or model names; `models.LocalModel` adds those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from adversariallm.core.budget import Usage
from adversariallm.core.directions import Account
from adversariallm.core.errors import ContextLengthError
from adversariallm.core.protocols import (
    Gradient,
    Logits,
    Losses,
    Objective,
    Outputs,
    OutputsObjective,
    Work,
)
from adversariallm.inference import losses as objectives
from adversariallm.inference.cache import RaggedStore
from adversariallm.inference.decode import Decoder, check_prompt
from adversariallm.inference.flops import architecture
from adversariallm.inference.forward import Forward
from adversariallm.inference.gradients import SoftPass, slot_gradient
from adversariallm.inference.hidden import Edit, decoder_layers, editing, recording
from adversariallm.inference.memory import rows_that_fit
from adversariallm.inference.numerics import RowPolicy
from adversariallm.inference.prefill import CHUNK, Filling, Prefill
from adversariallm.inference.prefix import Prefix
from adversariallm.inference.requests import Generation, Request
from adversariallm.inference.scoring import Item, Scorer
from adversariallm.inference.selfcheck import checked_report, unchecked_report
from adversariallm.inference.together import Chooser, decode_together, side_by_side

Scored = tuple[torch.Tensor, torch.Tensor, bool]


class Engine:
    """Batch-invariant numerics on one causal language model.

    Safe to use from several threads: calls on one model run one after the other.

    Attributes:
        forward: the model under the engine's rules.
        arch: what its operations cost.
        report: what the self-check found on this machine; store it with the run.
        cache: where such reports are kept, or None.
    """

    def __init__(
        self,
        model: Any,
        *,
        policy: RowPolicy | None = None,
        max_rows: int | None = None,
        cache: Path | None = None,
    ) -> None:
        """Look at the model, and check it unless a policy is given.

        Args:
            model: a causal language model of transformers; left as it was found.
            policy: row counts to use without checking; None runs the self-check (seconds).
            max_rows: most sequences decoded together; None for 64 on a CPU and 256 elsewhere.
            cache: folder in which the outcome of the self-check is kept; None checks every time.
        """
        self.forward = Forward(model)
        self.arch = architecture(model)
        self.cache = cache
        if policy is not None:
            self.report = unchecked_report(self.forward, policy)
        else:
            self.report = checked_report(self.forward, self.arch, cache)
        self.max_rows = max_rows or (64 if self.forward.device.type == "cpu" else 256)

    @property
    def num_embeddings(self) -> int:
        """V, rows of the input embedding."""
        return self.forward.num_embeddings

    @property
    def context_length(self) -> int:
        """Most positions of prompt and answer together."""
        return self.forward.context_length

    @torch.no_grad()
    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Continue every request; each result depends on its own request alone.

        Raises:
            ContextLengthError: a prompt does not leave room for one token.
        """
        with self.session():
            return self.decoder(requests).run(requests)

    @torch.no_grad()
    def decode_together(
        self, ids: Sequence[int], count: int, length: int, choose: Chooser, account: Account | None
    ) -> list[tuple[int, ...]]:
        """`count` continuations of one prompt that look at each other; see `together`.

        Args:
            ids: the prompt.
            count: number of sequences.
            length: ids of each.
            choose: takes every id.
            account: who pays, position by position; None asks nobody.
        """
        self._check_length(len(ids) + length)
        requests = side_by_side(ids, count, length, choose)
        with self.session():
            return decode_together(self.decoder(requests), requests, self.arch, account)

    def check_prompt(self, request: Request) -> None:
        """ContextLengthError where the prompt leaves no room for one token."""
        check_prompt(request, self.context_length)

    def decoder(self, requests: Sequence[Request]) -> Decoder:
        """An empty batch with as many places as sequences like these may have together."""
        rows = rows_that_fit(self._row_bytes(requests), self.forward.device, self.max_rows)
        return Decoder(self.forward, self.arch, self.policy, rows)

    @contextmanager
    def session(self) -> Iterator[None]:
        """The model under the engine's rules; checks again where the thread count changed."""
        with self.forward.lock:
            if self.report.checked and self.report.threads != torch.get_num_threads():
                self.report = checked_report(self.forward, self.arch, self.cache)
            with self.forward.attached():
                yield

    @property
    def policy(self) -> RowPolicy:
        """Row counts in use."""
        return self.report.policy

    def _row_bytes(self, requests: Sequence[Request]) -> int:
        """Memory that one sequence needs at most: keys, a prefill chunk, logits."""
        if not requests:
            return 1
        size = torch.finfo(self.forward.dtype).bits // 8
        longest = max(r.length + r.generation.max_new_tokens for r in requests) + CHUNK
        keys = min(longest, self.context_length) * self.arch.key_value_width * size
        chunk = 12 * CHUNK * self.forward.width * size
        return 2 * keys * len(self.arch.layers) + chunk + 4 * 4 * self.num_embeddings

    @torch.no_grad()
    def prefix(self, ids: Sequence[int]) -> Prefix:
        """Prefill `ids` once, for many calls; `usage` of the result is to be charged once."""
        ids = tuple(ids)
        if not ids:
            return Prefix()
        self._check_length(len(ids))
        with self.session():
            store = RaggedStore()
            filling = Prefill(self.forward, self.arch, self.policy)
            store.rearrange([None], filling.room([Filling(ids)]))
            _, executed = filling(store, 0, [Filling(ids)])
            keys, values = store.extract(0, len(ids))
        usage = self.arch.usage(len(ids), 0, 0, queries=0)
        return Prefix(ids, keys, values, usage, executed)

    @torch.no_grad()
    def losses(
        self,
        prefix: Prefix,
        candidates: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        chunk: int | None = None,
    ) -> Losses:
        """Loss of each target after prefix and candidate.

        Args:
            prefix: what all candidates start with; `Prefix()` for nothing.
            candidates: ids between prefix and target, ragged, none empty.
            targets: one per candidate, ragged, none empty.
            objective: called with one candidate at a time; None for mean cross-entropy.
            chunk: candidates computed together; None finds it. Changes no result.
        """
        items = [_item(c, t) for c, t in zip(candidates, targets, strict=True)]
        return self._score(prefix, items, objective, chunk)

    @torch.no_grad()
    def soft_losses(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        prefix: Prefix | None = None,
        chunk: int | None = None,
    ) -> Losses:
        """As `losses`, for inputs `[P, d]` given as embedding rows."""
        items = [_item((), t, x) for x, t in zip(inputs, targets, strict=True)]
        return self._score(prefix or Prefix(), items, objective, chunk)

    def _score(
        self, prefix: Prefix, items: list[Item], objective: Objective | None, chunk: int | None
    ) -> Losses:
        def reduce(logits: torch.Tensor, item: Item) -> Scored:
            target = torch.tensor([item.target], device=logits.device)
            nll = objectives.token_nll(logits[None], target)[0]
            loss = nll.mean() if objective is None else objective(logits[None], target)[0]
            match = bool(objectives.greedy_match(logits[None], target)[0])
            return loss.float().cpu(), nll.cpu(), match

        for item in items:
            self._check_length(len(prefix) + item.length)
        with self.session():
            scorer = Scorer(self.forward, self.arch, self.policy)
            rows = scorer.map(prefix, items, reduce, chunk)
        return Losses(
            loss=torch.stack([r[0] for r in rows]) if rows else torch.zeros(0),
            per_token=tuple(r[1] for r in rows),
            matches=torch.tensor([r[2] for r in rows], dtype=torch.bool),
            work=self._work(prefix, items, scorer.executed),
        )

    @torch.no_grad()
    def next_logits(
        self, prefix: Prefix, candidates: Sequence[Sequence[int]], *, chunk: int | None = None
    ) -> Logits:
        """`[W, V]` float32 logits after prefix and candidate, on the CPU."""
        items = [Item(tuple(c), 1) for c in candidates]
        for item in items:
            if not item.ids:
                raise ValueError("a candidate is empty: leave its last id out of the prefix")
            self._check_length(len(prefix) + item.length)
        with self.session():
            scorer = Scorer(self.forward, self.arch, self.policy)
            rows = scorer.map(prefix, items, lambda logits, _: logits[0].cpu(), chunk)
        stacked = torch.stack(rows) if rows else torch.zeros(0, self.num_embeddings)
        return Logits(stacked, self._work(prefix, items, scorer.executed))

    def gradient(
        self,
        prefix: Prefix,
        ids: Sequence[int],
        slot: Sequence[int],
        target: Sequence[int],
        *,
        objective: Objective | None = None,
        slot_embeddings: torch.Tensor | None = None,
    ) -> Gradient:
        """Gradient of the loss with respect to the slot's embedding vectors.

        Args:
            prefix: what stands before `ids`; no gradient flows into it.
            ids: ids between prefix and target, the slot among them.
            slot: positions in `ids` whose vectors are free.
            target: ids whose loss is taken, not empty.
            objective: None for mean cross-entropy.
            slot_embeddings: `[n, d]` vectors used in place of the slot's ids (free embeddings, or
                soft rows times the embedding matrix).
        """
        _item(ids, target)
        if slot_embeddings is not None and len(slot_embeddings) != len(slot):
            raise ValueError(f"{len(slot_embeddings)} vectors for {len(slot)} slot positions")
        self._check_length(len(prefix) + len(ids) + len(target) - 1)
        with self.session():
            return slot_gradient(
                self.forward, self.arch, self.policy, prefix, ids, slot, target, objective,
                slot_embeddings,
            )  # fmt: skip

    def soft_outputs(
        self, rows: torch.Tensor, positions: Sequence[int], *, hidden: bool = False
    ) -> Outputs:
        """Logits, and with `hidden` the residual stream, of `[P, d]` rows at `positions`."""
        self._check_length(len(rows))
        with self.session():
            return self._soft_pass(hidden).outputs(rows, positions)

    def soft_gradient(
        self,
        rows: torch.Tensor,
        slot: Sequence[int],
        positions: Sequence[int],
        objective: OutputsObjective,
        *,
        hidden: bool = False,
    ) -> Gradient:
        """Gradient at `rows[slot]` of an objective of the outputs at `positions`."""
        self._check_length(len(rows))
        with self.session():
            return self._soft_pass(hidden).gradient(rows, slot, positions, objective)

    def _soft_pass(self, hidden: bool) -> SoftPass:
        layers = self._layers() if hidden else None
        return SoftPass(self.forward, self.arch, self.policy, layers)

    @torch.no_grad()
    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        """`[n, V]` float32 gradient with respect to the one-hot rows: `g E^T`."""
        return slot_gradient.float() @ self.embedding_matrix().T.to(slot_gradient.device)

    @torch.no_grad()
    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """`[P, d]` float32 vectors that the embedding module gives, its own scaling included."""
        tokens = torch.tensor(list(ids), dtype=torch.long, device=self.forward.device)
        vectors: torch.Tensor = self.forward.embedding(tokens).float()
        return vectors

    def embedding_matrix(self) -> torch.Tensor:
        """`[V, d]` float32 vectors of all ids, through the module; computed once."""
        if not hasattr(self, "_matrix"):
            self._matrix = self.embed(range(self.num_embeddings))
        return self._matrix

    @torch.no_grad()
    def hidden_states(
        self, inputs: Sequence[Sequence[int]], positions: Sequence[int]
    ) -> torch.Tensor:
        """Residual stream `[W, L + 1, n, d]` float32, before each layer and after the last.

        Args:
            inputs: ragged id lists, computed one by one.
            positions: n positions; negative ones count from each input's end.
        """
        layers = self._layers()
        out = []
        with self.session(), recording(layers) as seen:
            for ids in inputs:
                self._check_length(len(ids))
                scorer = Scorer(self.forward, self.arch, self.policy)
                scorer.map(Prefix(), [Item(tuple(ids), 1)], lambda logits, _: logits)
                index = torch.tensor([p % len(ids) for p in positions])
                streams = [seen[i][0, index.to(seen[i].device)] for i in range(len(layers) + 1)]
                out.append(torch.stack([s.float().cpu() for s in streams]))
        return torch.stack(out)

    @contextmanager
    def editing(self, edit: Edit) -> Iterator[None]:
        """Edit the residual stream in all calls inside; other threads wait."""
        with self.forward.lock, editing(self._layers(), edit):
            yield

    def _layers(self) -> list[torch.nn.Module]:
        return decoder_layers(self.forward.model, len(self.arch.layers))

    def _check_length(self, length: int) -> None:
        if length > self.context_length:
            raise ContextLengthError(
                f"{length} tokens do not fit the model's context of {self.context_length}: "
                "shorten prompt or target"
            )

    def _work(self, prefix: Prefix, items: Sequence[Item], executed: int) -> Work:
        cached = len(prefix)
        rows = tuple(self.arch.usage(item.length, cached, item.count) for item in items)
        total = sum(rows, Usage())
        return Work(total, prefix.usage, prefix.key if cached else None, executed, rows)


def _item(
    candidate: Sequence[int], target: Sequence[int], vectors: torch.Tensor | None = None
) -> Item:
    """A candidate with its target; ValueError where one of them is empty."""
    if not target:
        raise ValueError("the target is empty: its loss is undefined")
    if not len(candidate) and (vectors is None or not len(vectors)):
        raise ValueError("a candidate is empty: leave its last id out of the prefix")
    return Item((*candidate, *target[:-1]), len(target), tuple(target), vectors)
