"""Odd and bad input to every attack that looks inside the model: an error, or a flagged step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from adversariallm.attacks._kit.slots import SlotProblem
from adversariallm.core.errors import AdversariaLLMError, ModelError, NeedsError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Needs
from adversariallm.core.records import RunDocument
from adversariallm.core.types import Behavior
from adversariallm.models.local import LocalModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import TEMPLATE, tiny_parts
from adversariallm.runs.execute import check_needs

sys.path.insert(0, str(Path(__file__).parent))
import harness  # noqa: E402  -- beside this file
import invariants  # noqa: E402
from harness import behaviors, run  # noqa: E402

NAMES = ATTACKS.names()
INSIDE = [n for n in NAMES if ATTACKS.load(n).INFO.needs & Needs.LOGITS]
TARGETED = [n for n in NAMES if ATTACKS.load(n).INFO.target == "required"]
WITH_HELPERS = [n for n in NAMES if ATTACKS.load(n).INFO.helpers]


def tiny_with(**changes: Any) -> Any:
    """A tiny Llama whose parts were changed; its refusal direction is made up."""
    parts = tiny_parts("llama")
    if "template" in changes:
        parts.tokenizer.chat_template = changes["template"]
    if "rows" in changes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            parts.model.resize_token_embeddings(
                len(parts.tokenizer) + changes["rows"], mean_resizing=False
            )
    model: Any = LocalModel.from_parts(parts.model, parts.tokenizer, name="tiny-changed")
    direction = harness.FixedDirection(torch.ones(model.embed([0]).shape[1]))
    model.refusal_direction = direction.found
    return model


def finish(name: str, model: Any, behavior: Behavior, options: dict[str, Any]) -> RunDocument:
    document = run(name, model, [behavior], options=options)
    assert document.status == "done"
    invariants.recorded_losses(document, model, behavior, tolerance=1e-5)
    invariants.recorded_ids(document, model)
    invariants.legal_ids(document, model)
    return document


@pytest.mark.parametrize("name", TARGETED)
def test_a_target_of_one_token_is_enough(name: str) -> None:
    planted = PlantedModel()
    if ATTACKS.load(name).INFO.needs & ~planted.gives:
        pytest.skip("needs what the planted model does not have")
    behavior = replace(planted.behavior(), target="S")
    target = planted.chat.segments(behavior.conversation, target="S").target_ids
    assert len(target) == 1
    finish(name, planted, behavior, {})


@pytest.mark.parametrize("target", [None, ""])
@pytest.mark.parametrize("name", TARGETED)
def test_no_target_is_refused_before_anything_is_asked(name: str, target: str | None) -> None:
    planted = PlantedModel()
    counting = harness.Counting(planted)
    behavior = replace(planted.behavior(), target=target)
    with pytest.raises(NeedsError, match="target"):
        run(name, counting, [behavior])
    assert not counting.queries


WIDTHS: dict[str, dict[str, Any]] = {
    "gcg": {"search_width": 1},
    "gcg_universal": {"search_width": 1},
    "gcg_reinforce": {"search_width": 1},
    "gcg_refusal": {"gcg": {"search_width": 1, "num_steps": 2, "initial": "! !"}},
    "random_search": {"num_candidates": 1},
    "beast": {"k1": 1, "k2": 1},
    "autodan": {"population": 2},
    "ample_gcg": {"num_suffixes": 1},
}


@pytest.mark.parametrize("name", WIDTHS)
def test_a_search_of_width_one_runs(name: str) -> None:
    finish(name, harness.contract_model(), behaviors()[0], WIDTHS[name])


TOP_K: dict[str, dict[str, Any]] = {
    "gcg": {"topk": 10**6},
    "gcg_universal": {"topk": 10**6},
    "gcg_reinforce": {"topk": 10**6, "sample_top_k": 10**6},
    "gcg_refusal": {"gcg": {"topk": 10**6, "num_steps": 2, "search_width": 4, "initial": "! !"}},
    "beast": {"top_k": 10**6},
}


@pytest.mark.parametrize("name", TOP_K)
def test_a_top_k_beyond_the_vocabulary_is_cut_to_what_is_allowed(name: str) -> None:
    model = harness.contract_model()
    document = finish(name, model, behaviors()[0], TOP_K[name])
    allowed = model.chat.mask(model.num_embeddings)
    clean = set(model.chat.encode(behaviors()[0].conversation))
    for step in document.runs[0].steps:
        assert all(allowed[i] or i in clean for i in step.model_input_tokens or ())


SLOTTED = ("gcg", "gcg_universal", "gcg_reinforce", "gcg_refusal", "random_search", "beast")


@pytest.mark.parametrize("name", SLOTTED)
def test_a_slot_without_reachable_candidates_is_flagged_and_kept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: SlotProblem, candidates: torch.Tensor) -> Any:
        return candidates[:0], {"sampled": len(candidates), "kept": 0}

    monkeypatch.setattr(SlotProblem, "reachable", none)
    document = finish(name, harness.contract_model(), behaviors()[0], {})
    first, *others = document.runs[0].steps
    assert others
    for step in others:
        assert "no_reachable_candidate" in step.flags
        assert step.model_input == first.model_input


@pytest.mark.parametrize("name", INSIDE)
def test_a_template_that_refuses_system_messages_says_so(name: str) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    model = tiny_with(template=refusing + TEMPLATE)
    with pytest.raises(AdversariaLLMError, match="system"):
        run(name, model, [behaviors()[1]])
    finish(name, model, behaviors()[0], {})


@pytest.mark.parametrize("rows", [-9, 40])
@pytest.mark.parametrize("name", INSIDE)
def test_a_vocabulary_of_another_size_than_the_embeddings_runs(name: str, rows: int) -> None:
    model = tiny_with(rows=rows)
    assert model.num_embeddings == len(model.chat.tokenizer) + rows
    if name == "autodan" and rows < 0:  # a word of the seeds has an id without a row
        with pytest.raises(ModelError, match="has no row in the embeddings"):
            run(name, model, [behaviors()[0]])
        return
    finish(name, model, behaviors()[0], {})


@pytest.mark.parametrize("name", WITH_HELPERS)
def test_a_missing_helper_is_refused_by_its_role(name: str) -> None:
    info = ATTACKS.load(name).INFO
    helpers = harness.helpers_for(name)
    for role in info.helpers:
        rest = {r: h for r, h in helpers.items() if r != role}
        with pytest.raises(NeedsError, match=role):
            check_needs(info, [harness.contract_model()], rest, behaviors())


STARTED = [n for n in SLOTTED if n not in ("beast", "gcg_refusal")]


@pytest.mark.parametrize("name", STARTED)
def test_a_slot_that_starts_empty_is_refused_before_the_run(name: str) -> None:
    with pytest.raises(ValidationError, match="initial\n.*at least 1 character"):
        ATTACKS.load(name).Config(initial="")
