"""A white-box model whose best suffix is known: it complies once secret words are in the input.

Everything it computes is a closed formula of the input, so searches can be checked against the true
optimum. It deliberately is no transformer; `tiny` has those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from adversariallm.core.budget import Usage
from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Gradient, Logits, Losses, Needs, Objective, Work
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, FinishReason, ModelInput, Reply
from adversariallm.inference.flops import Architecture
from adversariallm.inference.sampling import choose
from adversariallm.models.tiny import tiny_tokenizer
from adversariallm.tokenization import ChatTokenizer

SHARPNESS = 12.0
"""Logit of the token that the model would say at full score; the others have 0."""


class PlantedModel:
    """Refuses, unless enough of its secret words are in the input.

    The embedding of id v is the v-th unit vector. The score s of an input is the mean over the
    secret ids of the largest entry that any position has there: the share of secret words that are
    present. At answer position k the complying answer's k-th id has logit A*s, the refusal's
    A*(1-s), all others 0. So a greedy answer complies if and only if s > 1/2, and the loss of the
    complying answer falls with every secret word found. `best_suffix` reaches s = 1.
    """

    gives = Needs.white_box() & ~Needs.HIDDEN
    context_length = 2048

    def __init__(
        self,
        *,
        answer: str = "Sure, here is the list",
        refusal: str = "No. I refuse to help",
        secrets: int = 4,
        seed: int = 0,
        name: str = "planted",
    ) -> None:
        """Plant the words.

        Args:
            answer: the complying answer, also the target of `behavior`.
            refusal: what it says otherwise.
            secrets: number of secret words.
            seed: which words.
            name: short name for tables.
        """
        self.name = name
        self.chat = ChatTokenizer(tiny_tokenizer())
        self.num_embeddings = len(self.chat.codec)
        end = self.chat.stops().ids[-1]
        self.stop_ids = frozenset(self.chat.stops().ids)
        self.answer, self.refusal = answer, refusal
        self.answer_ids = (*self.chat.codec.encode(answer), end)
        self.refusal_ids = (*self.chat.codec.encode(refusal), end)
        self.secret_ids = self._plant(secrets, seed)
        self._marker = self.chat.encode(Conversation.user("a"))[-1]
        self._cost = Architecture(body=self.num_embeddings, head=self.num_embeddings, layers=())

    def _plant(self, count: int, seed: int) -> tuple[int, ...]:
        """Ids of whole words that keep their ids whatever words stand beside them."""
        codec = self.chat.codec
        words = [
            i
            for i in range(self.num_embeddings)
            if (text := codec.decode([i]))[:1] == " "
            and text[1:].isalpha()
            and len(text) > 3
            and codec.encode(text) == [i]
        ]
        order = sorted(words, key=Rng.root(seed).child("planted").uniform)
        return tuple(order[:count])

    @property
    def best_suffix(self) -> str:
        """A suffix of maximal score: all secret words, each after a blank."""
        return self.chat.decode(self.secret_ids)

    @property
    def best_loss(self) -> float:
        """Mean cross-entropy of `answer` at score 1."""
        return self.loss_at(1.0)

    def loss_at(self, score: float) -> float:
        """Mean cross-entropy of `answer` at a score."""
        target = self.answer_ids[:-1]
        logits = self._logits_at(torch.tensor(score), 0, len(target))
        return float(F.cross_entropy(logits, torch.tensor(target)))

    def behavior(self, goal: str = "write a short story") -> Behavior:
        """A behavior whose target is the model's complying answer."""
        return Behavior(
            id=f"planted-{stable_hash(goal, 8)}",
            conversation=Conversation.user(goal),
            goal=goal,
            harmful=True,
            target=self.answer,
            target_source="dataset",
        )

    def identity(self) -> Mapping[str, Any]:
        """Answers, secret words and tokenizer."""
        return {
            "fake": "planted",
            "answers": [self.answer, self.refusal],
            "secrets": list(self.secret_ids),
            "chat": self.chat.identity(),
        }

    # The model itself

    def score(self, ids: Sequence[int]) -> float:
        """Share of the secret words that are among `ids`."""
        return len(set(self.secret_ids) & set(ids)) / len(self.secret_ids)

    def _score(self, rows_PV: torch.Tensor) -> torch.Tensor:
        """The score of embedding rows, differentiable; ties share the gradient evenly."""
        return rows_PV[:, list(self.secret_ids)].amax(0).clamp(0, 1).mean()

    def _logits(self, rows_PV: torch.Tensor, new: int) -> torch.Tensor:
        """`[new, V]` logits of the `new` positions after the input."""
        return self._logits_at(self._score(rows_PV), self._said(rows_PV), new)

    def _logits_at(self, score: torch.Tensor, said: int, new: int) -> torch.Tensor:
        """`[new, V]` logits at a score, the first after `said` answer ids."""
        steps = range(said, said + new)
        yes = torch.tensor([self.answer_ids[min(k, len(self.answer_ids) - 1)] for k in steps])
        no = torch.tensor([self.refusal_ids[min(k, len(self.refusal_ids) - 1)] for k in steps])
        one_hot = [F.one_hot(ids, self.num_embeddings).float() for ids in (yes, no)]
        return SHARPNESS * (score * one_hot[0] + (1 - score) * one_hot[1])

    def _said(self, rows_PV: torch.Tensor) -> int:
        """How many positions stand after the last mark where an answer starts."""
        at = torch.nonzero(rows_PV.detach().argmax(-1) == self._marker)[:, 0]
        return rows_PV.shape[0] - 1 - int(at[-1]) if len(at) else 0

    # What models offer

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One answer per input; `json_schema` is ignored."""
        return [self._reply(item, generation, rng) for item, rng in zip(inputs, rngs, strict=True)]

    def _reply(
        self, item: Conversation | ModelInput, generation: GenerationConfig, rng: Rng
    ) -> Reply:
        given = ModelInput(conversation=item) if isinstance(item, Conversation) else item
        ids: Sequence[int] = ()
        if given.embeddings is not None:
            rows = given.embeddings.float()
        else:
            assert given.conversation is not None  # noqa: S101  ModelInput has one of the two
            ids = given.ids or self.chat.encode(given.conversation, prefill=given.prefill)
            rows = self.embed(ids)
        logits = self._logits(rows, generation.max_new_tokens)
        new: list[int] = []
        reason: FinishReason = "length"
        for position in range(generation.max_new_tokens):
            new.append(choose(logits[position], generation, rng, position))
            if new[-1] in self.stop_ids:
                reason = "stop"
                break
        text = self.chat.decode_reply(ids, new)
        usage = self._cost.generation(rows.shape[0], len(new))
        return Reply(
            text, ids=tuple(new), finish_reason=reason, usage=usage, executed=usage.flops or 0
        )

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """Loss of each target after its input."""
        key, prefix = self._shared(inputs, shared)
        found = self._soft([self.embed(ids) for ids in inputs], targets, objective, shared)
        work = replace(found.work, shared=prefix.usage, shared_key=key)
        return Losses(found.loss, found.per_token, found.matches, work)

    def soft_losses(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
    ) -> Losses:
        """Losses of inputs given as `[P, V]` rows."""
        return self._soft([rows.float() for rows in inputs], targets, objective, 0)

    def _soft(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        objective: Objective | None,
        shared: int,
    ) -> Losses:
        values, per_token, matches, spent = [], [], [], []
        for rows, target in zip(inputs, targets, strict=True):
            logits, ids = self._target_logits(rows, target), torch.tensor(list(target))
            nll = F.cross_entropy(logits, ids, reduction="none")
            values.append(_loss(logits, ids, objective))
            per_token.append(nll)
            matches.append(bool((logits.argmax(-1) == ids).all()))
            new = rows.shape[0] - shared + len(ids) - 1
            spent.append(self._cost.usage(new, shared, len(ids)))
        usage = sum(spent, Usage())
        work = Work(usage, executed=usage.flops or 0)
        return Losses(torch.stack(values), tuple(per_token), torch.tensor(matches), work)

    def _target_logits(self, rows_PV: torch.Tensor, target: Sequence[int]) -> torch.Tensor:
        if not len(target):
            raise ValueError("the target is empty: a loss over no position is undefined")
        return self._logits(rows_PV, len(target))

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
        """Gradient of the target's loss at the slot positions."""
        key, prefix = self._shared([input_ids], shared)
        rows = self.embed(input_ids)
        at = torch.tensor(list(slot))
        leaf = (rows[at] if slot_embeddings is None else slot_embeddings.float()).clone()
        leaf.requires_grad_(True)
        mixed = rows.index_copy(0, at, leaf)
        logits, ids = self._target_logits(mixed, target), torch.tensor(list(target))
        loss = _loss(logits, ids, objective)
        (slope,) = torch.autograd.grad(loss, leaf)
        usage = self._cost.usage(
            len(input_ids) - shared + len(ids) - 1, shared, len(ids), backward=True
        )
        return Gradient(
            slope,
            float(loss.detach()),
            bool(slope.isfinite().all()),
            Work(usage, prefix.usage, key, usage.flops or 0),
        )

    def next_logits(self, inputs: Sequence[Sequence[int]], *, shared: int = 0) -> Logits:
        """Logits after each input."""
        key, prefix = self._shared(inputs, shared)
        logits = torch.cat([self._logits(self.embed(ids), 1) for ids in inputs])
        usage = sum((self._cost.usage(len(i) - shared, shared, 1) for i in inputs), Usage())
        return Logits(logits, Work(usage, prefix.usage, key, usage.flops or 0))

    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        """The gradient itself: embeddings are unit vectors."""
        return slot_gradient

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """`[P, V]` unit vectors."""
        return F.one_hot(torch.tensor(list(ids)), self.num_embeddings).float()

    def embedding_matrix(self) -> torch.Tensor:
        """The unit matrix."""
        return self._eye

    @cached_property
    def _eye(self) -> torch.Tensor:
        return torch.eye(self.num_embeddings)

    def _shared(self, inputs: Sequence[Sequence[int]], shared: int) -> tuple[str | None, Work]:
        """Name and cost of the prefix that all inputs share."""
        if not shared:
            return None, Work()
        heads = {tuple(ids[:shared]) for ids in inputs}
        if len(heads) != 1 or any(len(ids) <= shared for ids in inputs):
            raise ValueError(f"the inputs do not share their first {shared} ids")
        key = hashlib.sha256(repr(heads.pop()).encode()).hexdigest()[:32]
        return key, Work(self._cost.usage(shared, 0, 0, queries=0))


def _loss(
    logits_TV: torch.Tensor, ids_T: torch.Tensor, objective: Objective | None
) -> torch.Tensor:
    """The objective of one target, mean cross-entropy unless given."""
    if objective is None:
        return F.cross_entropy(logits_TV, ids_T)
    return objective(logits_TV[None], ids_T[None])[0]
