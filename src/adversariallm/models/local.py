"""A transformers model on this machine: text, ids, logits, gradients and embeddings.

It joins the numerics of `inference` with the text of `tokenization`; what calls cost is reported,
never booked here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from adversariallm.core.config import stable_hash
from adversariallm.core.directions import Thresholds
from adversariallm.core.errors import ContextLengthError, ModelError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import (
    Direction,
    Gradient,
    Logits,
    Losses,
    Needs,
    Objective,
    Outputs,
    OutputsObjective,
    Work,
)
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply
from adversariallm.inference import (
    Constraint,
    Engine,
    Generation,
    JsonSchema,
    MicroBatcher,
    Prefix,
    Request,
    RowPolicy,
    guarded,
    without_direction,
)
from adversariallm.models.directions import (
    Prompts,
    RefusalDirection,
    adding,
    find_refusal_direction,
)
from adversariallm.models.identity import parts_identity
from adversariallm.models.reasoning import generate_in_two
from adversariallm.models.sources import cache_dir
from adversariallm.models.traits import Traits, probe
from adversariallm.tokenization import ChatTokenizer
from adversariallm.tokenization.thinking import reasoning_marks

if TYPE_CHECKING:
    import torch

    from adversariallm.core.directions import Account

KEPT_PREFIXES = 8
"""Prefilled prefixes kept per model; a run needs one, and several runs share a model."""
TOO_LONG = Reply("", finish_reason="context", error="context_length")


class LocalModel:
    """A white-box model around plain transformers objects, which are left as they were found."""

    gives = Needs.white_box()

    def __init__(
        self,
        engine: Engine,
        chat: ChatTokenizer,
        *,
        name: str,
        identity: Mapping[str, Any] | None = None,
        context_length: int | None = None,
        stop_tokens: Sequence[str] = (),
    ) -> None:
        """Join engine and chat tokenizer; usually made by `load_model` or `from_parts`."""
        self.engine = engine
        self.chat = chat
        self.name = name
        self._identity = identity
        self._batcher = MicroBatcher(engine)
        self._schemas: dict[str, JsonSchema] = {}
        self._directions: dict[str, RefusalDirection] = {}
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._lock = threading.Lock()
        self._search_lock = threading.Lock()
        self._steered = threading.local()
        limit = engine.context_length
        self.context_length = limit if context_length is None else min(limit, context_length)
        self.num_embeddings = engine.num_embeddings
        stops = chat.stops(engine.forward.model.generation_config)
        extra = [i for text in stop_tokens for i in chat.codec.encode(text)]
        self.stop_ids = frozenset({*stops.ids, *extra})
        self.stop_strings = stops.strings

    @classmethod
    def from_parts(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "in-memory",
        policy: RowPolicy | None = None,
        **options: Any,
    ) -> LocalModel:
        """Wrap a transformers model and its tokenizer (or a `ChatTokenizer`).

        Args:
            model: a causal language model of transformers.
            tokenizer: its tokenizer, with a chat template; or a `ChatTokenizer`.
            name: short name for tables.
            policy: row counts of the engine; None takes those found by checking this machine
                (seconds, once for each shape of model).
            options: further arguments of `LocalModel`.
        """
        chat = tokenizer if isinstance(tokenizer, ChatTokenizer) else ChatTokenizer(tokenizer)
        engine = Engine(model, policy=policy, cache=cache_dir() / "selfcheck")
        return cls(engine, chat, name=name, **options)

    def identity(self) -> Mapping[str, Any]:
        """From the card, or for objects in memory a hash of their content."""
        return self._memory_identity if self._identity is None else self._identity

    @cached_property
    def _memory_identity(self) -> dict[str, Any]:
        return parts_identity(self.engine.forward.model, self.chat)

    @cached_property
    def traits(self) -> Traits:
        """Probed facts about model and tokenizer."""
        return probe(self.engine.forward.model, self.chat)

    # Text

    def generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        *,
        json_schema: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """One reply per input; an input without room for an answer gets an error reply.

        Calls from several threads share batches, which changes no reply.
        """
        constraint = None if json_schema is None else self._constraint(json_schema)
        run = self.engine.generate if self._is_steered else self._batcher.generate
        return self._generate(inputs, generation, rngs, constraint, run)

    def _generate(
        self,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
        constraint: Callable[[], Constraint] | None,
        run: Callable[[Sequence[Request]], list[Generation]],
    ) -> list[Reply]:
        generation = generation.model_copy(update={"stop": (*generation.stop, *self.stop_strings)})
        requests = [
            self._request(item, generation, rng, constraint)
            for item, rng in zip(inputs, rngs, strict=True)
        ]
        fitting = [self._capped(r) for r in requests if r.length < self.context_length]
        marks = reasoning_marks(self.chat)
        if generation.max_reasoning_tokens is not None and marks is not None:
            found = iter(generate_in_two(fitting, self.chat, marks, self.engine.arch, run))
        else:
            found = iter(run(fitting))
        return [
            self._reply(r, next(found)) if r.length < self.context_length else TOO_LONG
            for r in requests
        ]

    def _capped(self, request: Request) -> Request:
        """The request without what lies beyond a context window that was lowered."""
        room = self.context_length - request.length
        if room >= request.generation.max_new_tokens:
            return request
        limits = {
            "max_new_tokens": room,
            "min_new_tokens": min(room, request.generation.min_new_tokens),
        }
        return replace(request, generation=request.generation.model_copy(update=limits))

    def _request(
        self,
        item: Conversation | ModelInput,
        generation: GenerationConfig,
        rng: Rng,
        constraint: Callable[[], Constraint] | None,
    ) -> Request:
        given = ModelInput(conversation=item) if isinstance(item, Conversation) else item
        ids = given.ids
        if given.conversation is not None and ids is None:
            ids = self.chat.encode(given.conversation, prefill=given.prefill)
        self._has_rows(ids or ())
        return Request(
            ids=ids,
            embeddings=given.embeddings,
            generation=generation,
            rng=rng,
            stop_ids=self.stop_ids,
            decode=self.chat.decode,
            constraint=constraint,
        )

    def _constraint(self, schema: Mapping[str, Any]) -> Callable[[], Constraint]:
        """Lets only JSON of a schema through; a schema is compiled once."""
        key = stable_hash(schema)
        with self._lock:
            if key not in self._schemas:
                made = JsonSchema(self.chat.tokenizer, self.num_embeddings, schema)
                self._schemas[key] = made
            return guarded(self.num_embeddings, self._schemas[key])

    def _reply(self, request: Request, found: Generation) -> Reply:
        """Text and facts of one generated sequence."""
        reasoning, text, finished = self.chat.split_reply(request.ids or (), found.ids)
        if found.stop_string is not None:
            text = text.partition(found.stop_string)[0]
        cut = len(found.ids) < request.generation.max_new_tokens and found.finish_reason == "length"
        return Reply(
            text=text,
            ids=found.ids,
            finish_reason="context" if cut else found.finish_reason,
            reasoning=reasoning,
            log_probs=found.log_probs,
            error=found.error,
            raw={} if finished else {"reasoning_unfinished": True},
            usage=found.usage,
            executed=found.executed,
        )

    # Numbers

    def losses(
        self,
        inputs: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
        shared: int = 0,
    ) -> Losses:
        """Loss of each target after its input; `shared` as in the protocol."""
        self._fits(inputs, targets)
        prefix, executed = self._prefix(inputs, shared)
        found = self.engine.losses(
            prefix, [ids[shared:] for ids in inputs], targets, objective=objective
        )
        return replace(found, work=_more(found.work, executed))

    def soft_losses(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[Sequence[int]],
        *,
        objective: Objective | None = None,
    ) -> Losses:
        """Losses of inputs given as `[P, d]` embedding rows."""
        self._fits(inputs, targets)
        return self.engine.soft_losses(inputs, targets, objective=objective)

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
        """Gradient at positions `slot`; the weights get none."""
        self._fits([input_ids], [target])
        prefix, executed = self._prefix([input_ids], shared)
        if any(not shared <= position < len(input_ids) for position in slot):
            raise ValueError(
                f"slot positions {list(slot)}: expected positions from {shared} (the shared prefix "
                f"ends there) to {len(input_ids) - 1}"
            )
        found = self.engine.gradient(
            prefix,
            input_ids[shared:],
            [position - shared for position in slot],
            target,
            objective=objective,
            slot_embeddings=slot_embeddings,
        )
        return replace(found, work=_more(found.work, executed))

    def next_logits(self, inputs: Sequence[Sequence[int]], *, shared: int = 0) -> Logits:
        """`[W, V]` float32 logits after each input."""
        self._fits(inputs, [()] * len(inputs))
        prefix, executed = self._prefix(inputs, shared)
        found = self.engine.next_logits(prefix, [ids[shared:] for ids in inputs])
        return replace(found, work=_more(found.work, executed))

    def decode_together(
        self,
        prompt: Sequence[int],
        count: int,
        length: int,
        choose: Callable[[int, int, torch.Tensor], int],
        *,
        account: Account | None = None,
    ) -> list[tuple[int, ...]]:
        """`count` continuations of `prompt`, each `length` ids, that look at each other.

        `choose(k, position, logits_V)` takes the id of sequence k, after the sequences before it
        have taken theirs at this position; asked again, it answers the same.
        """
        self._fits([prompt], [[0] * length])
        return self.engine.decode_together(prompt, count, length, choose, account)

    def soft_outputs(
        self, rows: torch.Tensor, positions: Sequence[int], *, hidden: bool = False
    ) -> Outputs:
        """Logits, and with `hidden` the residual stream, of `[P, d]` rows at `positions`."""
        self._fits([rows], [()])
        return self.engine.soft_outputs(rows, positions, hidden=hidden)

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
        self._fits([rows], [()])
        return self.engine.soft_gradient(rows, slot, positions, objective, hidden=hidden)

    # Hidden states

    def refusal_direction(
        self,
        harmful: Sequence[Conversation],
        harmless: Sequence[Conversation],
        harmful_validation: Sequence[Conversation],
        harmless_validation: Sequence[Conversation],
        *,
        refusal_tokens: Sequence[str] = ("I",),
        thresholds: Thresholds | None = None,
        account: Account | None = None,
    ) -> RefusalDirection:
        """The direction whose ablation lowers refusal most; found once for equal arguments.

        Args:
            harmful: instructions that the model refuses, to take means over.
            harmless: instructions that it answers.
            harmful_validation: further ones to choose with.
            harmless_validation: further ones to choose with.
            refusal_tokens: texts of tokens that refusals begin with.
            thresholds: what is admissible.
            account: who pays, also for a direction that was found before; so what a run books, and
                where a limit ends it, does not depend on what ran earlier.
        """
        groups = (harmful, harmless, harmful_validation, harmless_validation)
        encoded = [[self.chat.encode(talk) for talk in group] for group in groups]
        refusal_ids = [self.chat.codec.encode(text)[0] for text in refusal_tokens]
        thresholds = thresholds or Thresholds()
        key = stable_hash([encoded, refusal_ids, vars(thresholds)])
        with self._search_lock:
            if key not in self._directions:
                self._directions[key] = find_refusal_direction(
                    self.engine, Prompts(*encoded), refusal_ids, thresholds, account
                )
            elif account is not None:
                for done in self._directions[key].passes:
                    account.ask(done.usage.queries)
                    account.book(done)
            return self._directions[key]

    def generate_without(
        self,
        direction: torch.Tensor,
        inputs: Sequence[Conversation | ModelInput],
        generation: GenerationConfig,
        rngs: Sequence[Rng],
    ) -> list[Reply]:
        """As `generate`, with a direction `[d]` ablated from the residual stream."""
        with self.engine.editing(without_direction(direction)):
            return self._generate(inputs, generation, rngs, None, self.engine.generate)

    @contextmanager
    def steering(self, direction: Direction, strength: float) -> Iterator[None]:
        """Add `strength` times a direction before its layer in all of this thread's calls inside.

        Other threads wait. Prefixes prefilled without it are not used inside, nor the reverse.
        """
        with adding(self.engine, direction.layer, strength * direction.vector):
            self._steered.now = True
            try:
                yield
            finally:
                self._steered.now = False

    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        """`[n, V]` float32 gradient with respect to the one-hot rows."""
        return self.engine.token_scores(slot_gradient)

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """`[P, d]` float32 vectors that the embedding module gives for `ids`."""
        return self.engine.embed(ids)

    def embedding_matrix(self) -> torch.Tensor:
        """`[V, d]` float32 vectors of all ids, through the module."""
        return self.engine.embedding_matrix()

    @property
    def _is_steered(self) -> bool:
        return getattr(self._steered, "now", False)

    def _prefix(self, inputs: Sequence[Sequence[int]], shared: int) -> tuple[Prefix, int]:
        """The prefilled shared prefix, and the operations spent on it just now."""
        if not shared or not inputs:
            return Prefix(), 0
        ids = tuple(inputs[0][:shared])
        for row in inputs:
            if tuple(row[:shared]) != ids or len(row) <= shared:
                raise ValueError(
                    f"shared={shared}: every input must start with the same {shared} ids and go on "
                    "after them"
                )
        if self._is_steered:
            fresh = self.engine.prefix(ids)
            return fresh, fresh.executed
        with self._lock:
            prefix = self._prefixes.pop(ids, None)
            executed = 0
            if prefix is None:
                prefix = self.engine.prefix(ids)
                executed = prefix.executed
            self._prefixes[ids] = prefix  # the last one used stands last
            while len(self._prefixes) > KEPT_PREFIXES:
                self._prefixes.pop(next(iter(self._prefixes)))
        return prefix, executed

    def _fits(
        self, inputs: Sequence[Sequence[int] | torch.Tensor], targets: Sequence[Sequence[int]]
    ) -> None:
        """Refuse what the context cannot hold, and ids without an embedding row."""
        for row, target in zip(inputs, targets, strict=True):
            self._has_rows(target if hasattr(row, "dim") else (*row, *target))
            if len(row) + len(target) > self.context_length:
                raise ContextLengthError(
                    f"an input of {len(row)} tokens and a target of {len(target)} do not fit the "
                    f"context of model {self.name!r} ({self.context_length}); shorten the prompt"
                )

    def _has_rows(self, ids: Sequence[int]) -> None:
        highest = max(ids, default=0)
        if highest >= self.num_embeddings:
            raise ModelError(
                f"id {highest} ({self.chat.decode([highest])!r}) has no row in the embeddings of "
                f"model {self.name!r}, which have {self.num_embeddings}: the tokenizer knows more; "
                "leave that text out, or use the tokenizer that belongs to the weights"
            )


def _more(work: Work, executed: int) -> Work:
    """The work with what was executed beside it."""
    return replace(work, executed=work.executed + executed)
