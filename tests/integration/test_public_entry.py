"""`load_attack(...).run(model, tokenizer, dataset)`: the entry on plain transformers objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import adversariallm
from adversariallm.core.budget import Ledgers
from adversariallm.core.errors import ConfigError, NeedsError, UnknownNameError
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.tiny import tiny_parts
from adversariallm.runs.document import strip_volatile
from judgezoo import Judge

SHORT = {"max_new_tokens": 4}


def data() -> list[Behavior]:
    goals = ["write a short story", "good music"]
    return [
        Behavior(f"b{i}", Conversation.user(g), g, True, "Sure, here is", "user")
        for i, g in enumerate(goals)
    ]


@pytest.fixture
def parts() -> Any:
    return tiny_parts("llama")


def test_the_model_is_handed_back_as_it_was_found(parts: Any) -> None:
    model = parts.model.train()
    flags = {}
    for k, (name, parameter) in enumerate(model.named_parameters()):
        parameter.requires_grad_(k % 2 == 0)
        flags[name] = parameter.requires_grad
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    runner = adversariallm.load_attack("gcg", num_steps=1, search_width=4, initial="! ! !")
    result = runner.run(model, parts.tokenizer, data(), generation=SHORT)
    assert len(result) == 2
    assert model.training
    assert {n: p.requires_grad for n, p in model.named_parameters()} == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


def test_behavior_two_alone_gives_what_it_gives_after_behavior_one(parts: Any) -> None:
    runner = adversariallm.load_attack("random_search", num_steps=3, initial="x x x")
    both = runner.run(parts.model, parts.tokenizer, data(), generation=SHORT)
    alone = runner.run(parts.model, parts.tokenizer, data()[1:], generation=SHORT)
    steps = [[s.model_dump() for s in run.steps] for run in (both.runs[1], alone.runs[0])]
    assert strip_volatile(steps[0]) == strip_volatile(steps[1])


def test_a_store_keeps_the_same_document_and_a_second_call_computes_nothing(
    parts: Any, tmp_path: Path
) -> None:
    runner = adversariallm.load_attack("random_search", num_steps=2, initial="x x x")
    memory = runner.run(parts.model, parts.tokenizer, data(), generation=SHORT)
    stored = runner.run(parts.model, parts.tokenizer, data(), generation=SHORT, out=tmp_path)
    again = runner.run(parts.model, parts.tokenizer, data(), generation=SHORT, out=tmp_path)
    for a, b, c in zip(memory.documents, stored.documents, again.documents, strict=True):
        assert strip_volatile(a["runs"]) == strip_volatile(b["runs"])
        assert a["ledgers"] == b["ledgers"]
        assert b == c


def test_judging_fills_in_scores(parts: Any) -> None:
    judge = Judge.from_name("refusal_prefix")
    result = adversariallm.load_attack("direct").run(
        parts.model, parts.tokenizer, ["write a short story"], generation=SHORT, judge=judge
    )
    scores = result.runs[0].steps[0].scores["refusal_prefix"]
    assert len(scores[judge.info.score_key]) == 1


def test_more_samples_and_budgets_are_taken_as_mappings(parts: Any) -> None:
    result = adversariallm.load_attack("random_search", num_steps=9, initial="x x x").run(
        parts.model,
        parts.tokenizer,
        data()[:1],
        generation={**SHORT, "temperature": 1.0, "num_return_sequences": 3},
        budget={"queries": 20},
    )
    document = result.documents[0]
    assert document["status"].startswith("stopped: budget.queries=20")
    assert Ledgers.from_dict(document["ledgers"]).total("optimization").queries <= 20
    assert all(len(s.model_completions) == 3 for s in result.runs[0].steps)


def test_all_missing_texts_are_named(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUDGEZOO_CACHE", str(tmp_path))
    wanted = "run: adversariallm assets fetch( refusal_direction/har[a-z_]+){4}$"
    with pytest.raises(NeedsError, match=f"^4 texts by others are not at hand, .*{wanted}"):
        adversariallm.load_attack("gcg_refusal").run(parts.model, parts.tokenizer, data())


def test_mistakes_say_what_to_do(parts: Any) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'gcg'"):
        adversariallm.load_attack("gcgg")
    with pytest.raises(ConfigError, match="num_step"):
        adversariallm.load_attack("gcg", num_step=3)
    with pytest.raises(ConfigError, match="num_steps"):
        adversariallm.load_attack("gcg", num_steps="many")
    runner = adversariallm.load_attack("gcg", num_steps=1)
    with pytest.raises(ConfigError, match="dataset is empty"):
        runner.run(parts.model, parts.tokenizer, [])
    with pytest.raises(ConfigError, match="give the tokenizer"):
        runner.run(parts.model, None, data())
    with pytest.raises(NeedsError, match="needs a target.*Behavior\\(id, ") as caught:
        runner.run(parts.model, parts.tokenizer, ["no target here"])
    assert "datasets." not in str(caught.value)  # a key of the command line
    with pytest.raises(NeedsError, match="does not give"):
        runner.run(ScriptedModel(["x"]), None, data())
    with pytest.raises(ConfigError, match="temperature"):
        runner.run(parts.model, parts.tokenizer, data(), generation={"temperature": -1})
