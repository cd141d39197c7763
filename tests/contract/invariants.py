"""Invariants I1 to I10 of one finished run, as checks that every tier of tests uses.

Each takes the document and what it needs to know, and asserts; nothing here runs an attack.
"""

from __future__ import annotations

from typing import Any

import pytest

from adversariallm.core.budget import Ledgers
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import AttackInfo
from adversariallm.core.records import RunDocument
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, ModelInput


def recorded_losses(
    document: RunDocument, model: Any, behavior: Behavior, *, index: int = 0, tolerance: float
) -> int:
    """I1: the recorded loss is that of the recorded input; how many steps were compared."""
    compared = 0
    for step in document.runs[index].steps:
        if step.loss is None or step.model_input_tokens is None:
            continue
        text = step.note.get("target", behavior.target)
        target = model.chat.segments(behavior.conversation, target=text).target_ids
        again = model.losses([step.model_input_tokens], [target])
        assert float(again.per_token[0].mean()) == pytest.approx(step.loss, abs=tolerance)
        compared += 1
    return compared


def recorded_ids(document: RunDocument, model: Any, *, index: int = 0) -> int:
    """I2: the recorded conversation gives the recorded ids; how many steps were compared."""
    compared = 0
    for step in document.runs[index].steps:
        assert "unreachable" not in step.flags
        if step.model_input is not None:
            ids = model.chat.encode(Conversation.from_dicts(step.model_input))
            assert list(ids) == step.model_input_tokens
            compared += 1
    return compared


def completions_of_recorded_ids(
    document: RunDocument, model: Any, generation: GenerationConfig, samples: int
) -> None:
    """I3: greedy completions are what the recorded ids, and nothing else, continue with."""
    for step in document.runs[0].steps:
        if step.model_input is None or any(c.in_loop for c in step.completions):
            continue
        given = ModelInput(Conversation.user("unused"), tuple(step.model_input_tokens or ()))
        (reply,) = model.generate([given], generation, [Rng.root(0)])
        assert [list(reply.ids)] * samples == [c.ids for c in step.completions]


def target_absent(document: RunDocument, behavior: Behavior, *, index: int = 0) -> None:
    """I4 and I5: the original prompt is the dataset's; the target is never part of the input."""
    assert document.runs[index].original_prompt == behavior.conversation.to_dicts()
    for step in document.runs[index].steps:
        if step.model_input is None:
            continue
        last = step.model_input[-1]
        if step.prefill:
            assert last == {"role": "assistant", "content": step.prefill}
            assert not any(t.startswith(step.prefill) for t in step.model_completions)
        else:
            assert last["role"] == "user"


def legal_ids(document: RunDocument, model: Any) -> None:
    """I7: no id is outside tokenizer and embedding."""
    limit = min(model.num_embeddings, len(model.chat.tokenizer))
    for run in document.runs:
        for step in run.steps:
            assert all(0 <= t < limit for t in step.model_input_tokens or ())


def outside_untouched(
    document: RunDocument, behavior: Behavior, info: AttackInfo, *, index: int = 0
) -> None:
    """I8: what stands outside the slot is as in the clean conversation, at every step."""
    if info.modality not in ("suffix", "none"):
        pytest.skip("changes more than a suffix")
    clean = behavior.conversation
    for step in document.runs[index].steps:
        if step.model_input is None:
            continue
        assert len(step.model_input) == len(clean)
        for sent, asked in zip(step.model_input[:-1], clean.to_dicts()[:-1], strict=True):
            assert sent == asked
        assert step.model_input[-1]["content"].startswith(clean[len(clean) - 1].content)


def ledgers_add_up(document: RunDocument) -> None:
    """I10: the steps, what was cut off and the set-up add up to the run."""
    total = Ledgers.from_dict(document.remainder)
    for one in document.runs:
        for step in one.steps:
            total = total + Ledgers.from_dict(step.ledgers)
            optimization = step.ledgers.get("optimization", {}).values()
            assert step.flops == sum(u.get("flops", 0) for u in optimization)
    setup = {"setup": document.ledgers["setup"]} if "setup" in document.ledgers else {}
    assert (total + Ledgers.from_dict(setup)).to_dict() == document.ledgers
