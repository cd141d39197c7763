"""A real model answers its stored embeddings as it did, alone, together and by replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from adversariallm import load_dataset, load_model
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.runs.api import load_attack
from adversariallm.runs.embeddings import embedded_inputs
from adversariallm.runs.replay import replay
from adversariallm.runs.store import Store

pytestmark = pytest.mark.slow


def test_stored_embeddings_of_smollm2_give_the_stored_completions(tmp_path: Path) -> None:
    decoding = GenerationConfig(max_new_tokens=8, temperature=0.0)
    attack = load_attack("pgd", num_steps=2)
    items = list(load_dataset("starter_harmful"))[:1]
    attack.run(load_model("smollm2-135m"), None, items, generation=decoding, out=tmp_path)
    store, model = Store(tmp_path), load_model("smollm2-135m")
    for run_id in store.runs():
        steps = store.read(run_id)["runs"][0]["steps"]
        inputs = [given for _, _, given in embedded_inputs(store, run_id, [model])]
        stored = [step["completions"][0]["ids"] for step in steps]
        rngs = [Rng.root(k) for k in range(len(inputs))]
        together = model.generate(inputs, decoding, rngs)
        alone = [model.generate([one], decoding, [Rng.root(0)])[0] for one in inputs]
        assert [list(r.ids or ()) for r in together] == stored
        assert [list(r.ids or ()) for r in alone] == stored
        result = replay(store, run_id, models={steps_model(store, run_id): "smollm2-135m"})
        assert result.passed, result.difference


def steps_model(store: Store, run_id: str) -> str:
    """The name that the run has for its model."""
    return str(store.header(run_id)["resolved"]["models"][0]["name"])
