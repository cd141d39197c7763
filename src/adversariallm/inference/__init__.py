"""Numerics on a bare causal language model of transformers, batch-invariant by construction.

Public shapes (everything else in this package is private to it):

    engine = Engine(model)                       # self-check of a few seconds: engine.report
    engine.generate([Request(ids, generation=GenerationConfig(...), rng=..., stop_ids=...)])
        -> [Generation(ids, finish_reason, log_probs, stop_string, error, usage, executed)]
    engine.decode_together(ids, count, length, choose, account)  # sequences that see each other
    prefix = engine.prefix(ids)                  # immutable; prefix.usage is charged once
    engine.losses(prefix, candidates, targets, objective=None)      -> core.protocols.Losses
    engine.soft_losses([embeddings], targets)                       -> core.protocols.Losses
    engine.next_logits(prefix, candidates)                          -> core.protocols.Logits
    engine.gradient(prefix, ids, slot, target, slot_embeddings=...) -> core.protocols.Gradient
    engine.token_scores(gradient.slot)           # [n, V]
    engine.embed(ids), engine.embedding_matrix() # float32, through the module
    engine.hidden_states(inputs, positions)      # residual stream [W, L + 1, n, d]
    with engine.editing(without_direction(v)):   # ablation in all calls inside
    MicroBatcher(engine).generate(requests)      # threads share batches
    JsonSchema(tokenizer, V, schema), guarded(V, inner)   # Request.constraint, for helpers only
    generate_ragged, candidate_losses, token_gradients    # functions on plain models
    inference.losses                                      # objectives, pure functions

`prefix` is `Prefix()` where nothing is shared; `candidates` are the ids between prefix and target
(slot and tail), ragged; the target is given apart. It knows nothing of chat templates, attacks,
budgets as limits, or model names.
"""

from adversariallm.inference.constrained import JsonSchema, guarded
from adversariallm.inference.engine import Engine
from adversariallm.inference.functions import candidate_losses, generate_ragged, token_gradients
from adversariallm.inference.hidden import without_direction
from adversariallm.inference.numerics import SAFE_POLICY, RowPolicy
from adversariallm.inference.prefix import Prefix
from adversariallm.inference.queue import MicroBatcher
from adversariallm.inference.requests import Constraint, Generation, Request
from adversariallm.inference.selfcheck import Report

__all__ = [
    "SAFE_POLICY",
    "Constraint",
    "Engine",
    "Generation",
    "JsonSchema",
    "MicroBatcher",
    "Prefix",
    "Report",
    "Request",
    "RowPolicy",
    "candidate_losses",
    "generate_ragged",
    "guarded",
    "token_gradients",
    "without_direction",
]
