"""The gradient that GCG follows against autograd on an explicit one-hot leaf, in double precision.

The reference is a double copy of the model with plain code: no shared prefix, no tiles, no float32.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from adversariallm.attacks import gcg
from adversariallm.attacks._kit.buffer import Buffer
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.protocols import Gradient
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.local import LocalModel
from adversariallm.models.planted import PlantedModel
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


ELSEWHERE = FakeTensorMode(allow_non_fake_inputs=True)


class OnAnotherDevice(PlantedModel):
    """Its gradients are tensors without data on a device that this machine need not have."""

    def gradient(self, input_ids: Any, slot: Any, target: Any, **rest: Any) -> Gradient:
        with ELSEWHERE:
            return Gradient(
                torch.empty(len(slot), self.num_embeddings, device="cuda"), 0.0, finite=True
            )

    def token_scores(self, slot_gradient: torch.Tensor) -> torch.Tensor:
        assert slot_gradient.device.type == "cuda"  # the embedding matrix stays where it is
        return slot_gradient.bfloat16()


def test_token_scores_come_back_to_where_mask_and_proposals_are() -> None:
    model: Any = OnAnotherDevice()
    problem = SlotProblem.build(model, model.behavior(), Slot("suffix", "! ! ! !", "space"))
    scores, _ = problem.token_gradient(problem.start)
    assert (scores.device.type, scores.dtype) == ("cpu", torch.float32)
    masked = scores.masked_fill(~problem.allowed, torch.inf)
    assert masked.shape == (len(problem.start), model.num_embeddings)


def test_a_momentum_that_was_stored_joins_the_gradient_where_that_is() -> None:
    model: Any = OnAnotherDevice()
    problem = SlotProblem.build(model, model.behavior(), Slot("suffix", "! ! ! !", "space"))
    stored = torch.zeros(len(problem.start), model.num_embeddings)
    at = gcg._Search(problem.start, 1.0, 2, False, stored, Buffer(0))
    attack = gcg.Attack(gcg.Config(grad_momentum=0.5))
    with ELSEWHERE:
        scores = attack._token_scores(problem, at, Rng.root(0))
    assert scores is not None and scores.device.type == "cpu"
    assert at.momentum is not None and at.momentum.device.type == "cuda"
    assert at.state().tensors["momentum"].device.type == "cpu"
