"""Stored embeddings come back exactly, generate what was stored, and belong to one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.core.config import stable_hash
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.api import load_attack
from adversariallm.runs.embeddings import embedded_inputs
from adversariallm.runs.replay import replay
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop

GREEDY = {"max_new_tokens": 6, "temperature": 0.0}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("gemma3_text")  # its embedding module scales


@pytest.fixture(scope="module")
def store(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("store")
    attack = load_attack("pgd", num_steps=3, step_size=0.1, initial="! ! !")
    item = {
        "id": "story",
        "conversation": [{"role": "user", "content": "write a short story"}],
        "goal": "write a short story",
        "harmful": True,
        "target": "Sure, here is",
    }
    attack.run(model, None, [item], generation=GREEDY, out=root)
    return Store(root)


def run_of(store: Store) -> str:
    (run_id,) = store.runs()
    return run_id


def replayed(store: Store, model: Any) -> Any:
    identity = store.header(run_of(store))["resolved"]["models"][0]["identity"]
    workshop = Workshop(models={stable_hash(identity): model})
    return replay(store, run_of(store), workshop=workshop, search=True)


def test_the_stored_rows_give_the_stored_completions(store: Store, model: Any) -> None:
    document = store.read(run_of(store))
    found = list(embedded_inputs(store, run_of(store), [model]))
    assert [(step, lane) for step, lane, _ in found] == [(k, 0) for k in range(4)]
    inputs = [given for _, _, given in found]
    together = model.generate(inputs, GenerationConfig(**GREEDY), [Rng.root(k) for k in range(4)])
    for step, given, reply in zip(document["runs"][0]["steps"], inputs, together, strict=True):
        assert step["model_input"] is None
        assert list(reply.ids) == step["completions"][0]["ids"]
        assert reply.text == step["model_completions"][0]
        (alone,) = model.generate([given], GenerationConfig(**GREEDY), [Rng.root(9)])
        assert alone.ids == reply.ids
    assert not torch.equal(inputs[0].embeddings, inputs[3].embeddings)


def test_a_replay_of_embeddings_passes(store: Store, model: Any) -> None:
    result = replayed(store, model)
    assert result.passed, result.difference
    assert "4 of 4 completions came out equal" in result.compared
    assert "every step of the search came out equal" in result.compared


OTHERS = [
    (PlantedModel(name="wide"), r"embeddings of 'in-memory' of width 48, those of 'wide' have \d+"),
    (tiny_model("gemma3_text", seed=7), "embeddings of 'in-memory' .*mean nothing to 'tiny-gemma3"),
    (ScriptedModel(["x"]), "embeddings of 'in-memory', and 'scripted' does not take embeddings"),
]


@pytest.mark.parametrize(("other", "words"), OTHERS, ids=["width", "weights", "text only"])
def test_embeddings_of_another_model_are_refused_and_both_are_named(
    store: Store, other: Any, words: str
) -> None:
    words = words.replace("in-memory", store.header(run_of(store))["resolved"]["models"][0]["name"])
    with pytest.raises(NeedsError, match=words):
        list(embedded_inputs(store, run_of(store), [other]))


def test_a_replay_on_another_model_is_refused(store: Store) -> None:
    with pytest.raises(NeedsError, match="mean nothing to 'tiny-gemma3_text'"):
        replayed(store, tiny_model("gemma3_text", seed=7))


def test_a_run_of_text_has_no_embeddings(model: Any, tmp_path: Path) -> None:
    load_attack("direct").run(model, None, ["good music"], generation=GREEDY, out=tmp_path)
    assert list(embedded_inputs(Store(tmp_path), run_of(Store(tmp_path)), [model])) == []
