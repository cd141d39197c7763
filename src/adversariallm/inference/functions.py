"""The engine's main operations as functions on plain transformers objects.

Each accepts a model or an `Engine`; pass an engine to check the machine once instead of every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Losses, Objective
from adversariallm.core.rng import Rng
from adversariallm.inference.engine import Engine
from adversariallm.inference.requests import Decode, Generation, Request


def _engine(model: Any) -> Engine:
    return model if isinstance(model, Engine) else Engine(model)


def generate_ragged(
    model: Any,
    prompts: Sequence[Sequence[int] | torch.Tensor],
    generation: GenerationConfig | None = None,
    *,
    stop_ids: Sequence[int] | None = None,
    seed: int = 0,
    decode: Decode | None = None,
) -> list[list[Generation]]:
    """Continue prompts of any mix of lengths; the answers do not depend on the batch.

    Args:
        model: a causal language model of transformers, or an `Engine`.
        prompts: id lists, or `[P, d]` embeddings.
        generation: decoding options; greedy with 256 new tokens by default.
        stop_ids: ids that end an answer; None takes those of the model's generation config.
        seed: sample n of prompt i draws from the stream `(seed, "generate", i, n)`.
        decode: ids to text, needed for stop strings.

    Returns:
        For each prompt, `generation.num_return_sequences` answers.
    """
    engine = _engine(model)
    options = generation or GenerationConfig()
    if stop_ids is None:
        stop_ids = _eos_ids(engine.forward.model)
    requests = []
    for i, prompt in enumerate(prompts):
        soft = isinstance(prompt, torch.Tensor) and prompt.is_floating_point()
        for sample in range(options.num_return_sequences):
            requests.append(
                Request(
                    ids=None if soft else tuple(int(t) for t in prompt),
                    embeddings=prompt if soft and isinstance(prompt, torch.Tensor) else None,
                    generation=options,
                    rng=Rng.root(seed).child("generate", i, sample),
                    stop_ids=frozenset(stop_ids),
                    decode=decode,
                )
            )
    answers = engine.generate(requests)
    n = options.num_return_sequences
    return [answers[i * n : (i + 1) * n] for i in range(len(prompts))]


def _eos_ids(model: Any) -> list[int]:
    eos = model.generation_config.eos_token_id
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def candidate_losses(
    model: Any,
    prefix: Sequence[int],
    candidates: Sequence[Sequence[int]],
    target: Sequence[int] | Sequence[Sequence[int]],
    objective: Objective | None = None,
) -> Losses:
    """Loss of `target` after `prefix` and each candidate; the prefix is prefilled once.

    Args:
        model: a causal language model of transformers, or an `Engine`.
        prefix: ids before every candidate; may be empty.
        candidates: ragged id lists, none empty.
        target: ids for all candidates, or one id list for each.
        objective: float32 `[W, T, V]` logits and `[W, T]` ids to `[W]`; None for mean
            cross-entropy.
    """
    engine = _engine(model)
    shared = not target or isinstance(target[0], int)
    targets: Any = [target] * len(candidates) if shared else target
    stored = engine.prefix(prefix)
    return engine.losses(stored, candidates, targets, objective=objective)


def token_gradients(
    model: Any,
    ids: Sequence[int],
    slot: Sequence[int],
    target: Sequence[int],
    objective: Objective | None = None,
) -> tuple[torch.Tensor, float]:
    """Gradient of the loss with respect to the one-hot rows of the slot, and the loss.

    Args:
        model: a causal language model of transformers, or an `Engine`; weights get no gradient.
        ids: the whole input before the target.
        slot: positions in `ids`.
        target: ids whose loss is taken.
        objective: as in `candidate_losses`.

    Returns:
        `[n, V]` float32 scores (the more negative, the more promising the id) and the loss.
    """
    engine = _engine(model)
    first = min(slot)
    prefix = engine.prefix(ids[:first])
    positions = [p - first for p in slot]
    found = engine.gradient(prefix, ids[first:], positions, target, objective=objective)
    return engine.token_scores(found.slot), found.loss
