"""The gradient that GCG follows against autograd on an explicit one-hot leaf, in double precision.

The reference is a double copy of the model with plain code: no shared prefix, no tiles, no float32.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.local import LocalModel
from adversariallm.models.tiny import tiny_parts
from adversariallm.tokenization import Slot

ARCHITECTURES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "gpt_neox",
)  # fmt: skip
TALK = Conversation.user("write a short story", system="a careful helper")
BEHAVIOR = Behavior("b", TALK, TALK[1].content, True, "Sure, here is the list", "dataset")


def one_hot_gradient(model: Any, problem: SlotProblem, length: int | None) -> torch.Tensor:
    """`[n, V]` float64 gradient of the mean target cross-entropy at the slot's one-hot rows."""
    target = torch.tensor(problem.target[:length])
    ids = torch.tensor([*problem.segments.input_ids, *target.tolist()])
    positions = torch.tensor(problem.segments.slot_positions)
    embedding = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    leaf = F.one_hot(ids[positions], rows).double().requires_grad_(True)
    matrix = embedding(torch.arange(rows)).detach()
    inputs = embedding(ids).detach().index_copy(0, positions, leaf @ matrix)[None]
    logits = model(inputs_embeds=inputs, use_cache=False).logits[0, -len(target) - 1 : -1]
    assert logits.dtype == torch.float64
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, target), leaf)
    return gradient


@pytest.mark.parametrize("length", [None, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_the_gradient_of_the_one_hot_rows(architecture: Any, length: int | None) -> None:
    parts = tiny_parts(architecture)
    exact = copy.deepcopy(parts.model).double()
    model = LocalModel.from_parts(parts.model, parts.tokenizer, name=architecture)
    problem = SlotProblem.build(model, BEHAVIOR, Slot("suffix", "! ! ! !", "space"))
    expected = one_hot_gradient(exact, problem, length)
    found, finite = problem.token_gradient(problem.start, length=length)
    assert finite and found.dtype == torch.float32
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert float(error) < 2e-5
    best = expected.masked_fill(~problem.allowed, torch.inf)
    for position in range(len(found)):  # the shortlist's first entry is the true best token
        chosen = int(found[position].masked_fill(~problem.allowed, torch.inf).argmin())
        assert float(best[position, chosen] - best[position].min()) <= 2e-5 * float(
            expected.abs().max()
        )
