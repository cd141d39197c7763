"""Ties to a reference model: exact slopes through both models, an effect, refusals, the ledger."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import pgd
from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.attacks._kit.ties import Tie
from adversariallm.core.budget import Budget, Ledgers
from adversariallm.core.errors import NeedsError
from adversariallm.core.rng import Rng
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.execute import execute
from adversariallm.runs.runlog import MemoryLog
from adversariallm.tokenization import Slot

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import behaviors, resources, spec  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def reference() -> Any:
    """A fine-tuned relative: the same embeddings, other layers."""
    other = tiny_model("llama", seed=3)
    shared = tiny_model("llama").engine.forward.embedding.weight
    other.engine.forward.embedding.weight.data.copy_(shared)
    return other


def problem(model: Any) -> SlotProblem:
    return SlotProblem.build(model, behaviors()[1], Slot("suffix", "! ! !", "space"), filter="none")


def vectors(model: Any, n: int) -> torch.Tensor:
    return torch.randn(n, model.embed([0]).shape[1], generator=Rng.root(5).torch())


def attack(model: Any, reference: Any, **options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    budget = options.pop("budget", Budget())
    chosen = {"num_steps": 3, "step_size": 0.05, **options}
    task = spec("pgd", model, [behaviors()[0]], options=chosen, budget=budget)
    helpers = {} if reference is None else {"reference": reference}
    return execute(task, resources("pgd", model, helpers=helpers), MemoryLog())


@pytest.mark.parametrize(("logits", "features"), [(2.0, 0.0), (0.0, 3.0), (0.5, 1.5)])
def test_the_slope_is_that_of_plain_autograd_in_float64(
    model: Any, reference: Any, logits: float, features: float
) -> None:
    tied = problem(model)
    tie = Tie(tied, reference, logits, features)
    slot = list(tied.segments.slot_positions)
    at = vectors(model, len(slot))
    value, slope = tie.pull(at)

    leaf = at.double().requires_grad_(True)
    rows = tied.rows_with(at).double().index_copy(0, torch.tensor(slot), leaf)
    found = []
    for one in (model, reference):
        plain = copy.deepcopy(one.engine.forward.model).double()
        # the last entry of transformers' list is normalized: take the stream before the norm
        held: list[torch.Tensor] = []
        plain.model.norm.register_forward_pre_hook(lambda _, a, held=held: held.append(a[0]))
        out = plain(inputs_embeds=rows[None], output_hidden_states=True)
        states = torch.stack([*out.hidden_states[1:-1], held[0]])[:, 0, slot[0] :]
        found.append((out.logits[0, slot[0] :].log_softmax(-1), states))
    (p, mine), (q, theirs) = found
    divergence = (q.exp() * (q - p)).sum(-1).mean()
    apart = (1 - torch.cosine_similarity(mine, theirs, dim=-1)).mean()
    expected = logits * divergence + features * apart
    (wanted,) = torch.autograd.grad(expected, leaf)
    assert value == pytest.approx(float(expected.detach()), rel=1e-4)
    assert tie.value(at) == pytest.approx(value, rel=1e-4)
    assert torch.allclose(slope.double(), wanted, rtol=1e-3, atol=1e-5)
    assert float(wanted.abs().max()) > 1e-3


def test_a_model_tied_to_itself_is_free(model: Any) -> None:
    tied = problem(model)
    value, slope = Tie(tied, model, 1.0, 1.0).pull(vectors(model, len(tied.start)))
    assert value == pytest.approx(0.0, abs=1e-5)
    assert float(slope.abs().max()) < 1e-4


@pytest.mark.parametrize("option", ["tie_logits", "tie_features", "tie_benign"])
def test_a_strong_tie_keeps_the_models_closer(model: Any, reference: Any, option: str) -> None:
    options = {"num_steps": 12, "optimizer": "normalized", "step_size": 0.3}
    weak, _ = attack(model, reference, **options, **{option: 1e-9})
    strong, tensors = attack(model, reference, **options, **{option: 1.0})
    start, *_, last = (step.note["tie"] for step in strong.runs[0].steps)
    assert last < start
    assert last < 1e9 * weak.runs[0].steps[-1].note["tie"]
    assert "tie" not in attack(model, None)[0].runs[0].steps[0].note


def test_the_harmless_request_matters(model: Any, reference: Any) -> None:
    one, _ = attack(model, reference, tie_benign=1.0)
    other, _ = attack(model, reference, tie_benign=1.0, benign="good music")
    values = [[s.note["tie"] for s in d.runs[0].steps] for d in (one, other)]
    assert values[0] != values[1]


def test_what_the_reference_computes_has_a_ledger_of_its_own(model: Any, reference: Any) -> None:
    document, _ = attack(model, reference, tie_logits=1.0)
    ledgers = Ledgers.from_dict(document.ledgers)
    # three slopes take a forward and a backward pass each, the last value a forward pass
    used = ledgers.total("optimization", role="reference")
    assert (used.queries, used.backward_passes) == (7, 3)
    assert ledgers.total("optimization", role="model").queries == 8
    stopped, _ = attack(model, reference, tie_logits=1.0, budget=Budget(reference={"queries": 3}))
    assert stopped.status.startswith("stopped: budget.reference.queries")
    assert len(stopped.runs[0].steps) == 1


def test_a_tie_without_a_reference_is_refused(model: Any) -> None:
    with pytest.raises(NeedsError, match=r"needs a helper model for reference .*fine"):
        attack(model, None, tie_logits=1.0)


def test_hidden_states_are_asked_for_only_where_they_are_tied(reference: Any) -> None:
    planted = PlantedModel()
    with pytest.raises(NeedsError, match="needs hidden of the model"):
        attack(planted, reference, tie_features=1.0)


def test_models_of_other_shapes_are_refused_and_named(model: Any) -> None:
    with pytest.raises(NeedsError, match=r"'planted' has embeddings of width \d+.*'tiny-llama' 48"):
        Tie(problem(model), PlantedModel(), 1.0)  # type: ignore[arg-type]


def test_no_tie_asks_for_nothing() -> None:
    assert pgd.INFO.with_options(pgd.Config()) == pgd.INFO
    assert set(pgd.INFO.with_options(pgd.Config(tie_logits=1)).helpers) == {"reference"}
