"""Chat attacks on a local model: one seed gives one transcript, whatever runs at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.config import stable_hash
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.types import Behavior, Conversation
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.tiny import tiny_model
from adversariallm.runs.spec import BehaviorSet, ModelSpec, PluginSpec, RunSpec, RunTask
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop, work


class Texts:
    """Stands for the asset store."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def text(self, name: str) -> str:
        return self._texts[name]


def tasks(attack: str, models: dict[str, Any]) -> list[RunTask]:
    module = ATTACKS.load(attack)
    config = module.Config(**module.INFO.quick)
    specs = {r: ModelSpec(name=r, identity=dict(m.identity())) for r, m in models.items()}
    found = []
    for k in range(6):
        goal = "name " + "some " * k + "birds"  # of different lengths, so that batches are ragged
        item = Behavior(f"b{k}", Conversation.user(goal), goal, True)
        spec = RunSpec(
            attack=PluginSpec(name=attack, version=1, options=config.semantic()),
            models=(specs["model"],),
            helpers={r: s for r, s in specs.items() if r != "model"},
            fit=BehaviorSet(dataset="t", content_hash="0", ids=(item.id,), keys=(item.key,)),
            generation=GenerationConfig(max_new_tokens=6, temperature=1.0),
            assets=dict.fromkeys(module.INFO.assets_of(config), "0" * 64),
        )
        found.append(RunTask(spec=spec, fit=(item.to_dict(),)))
    return found


@pytest.mark.parametrize("attack", ["actor", "crescendo", "pair", "tap"])
def test_transcripts_of_a_local_model_are_equal_at_concurrency_1_and_8(
    attack: str, tmp_path: Path
) -> None:
    module = ATTACKS.load(attack)
    target = tiny_model()
    helpers = {r: ScriptedModel(s, name=r) for r, s in module.EXAMPLE_REPLIES.items()}
    models: dict[str, Any] = {"model": target, **helpers}
    held = {stable_hash(dict(m.identity())): m for m in models.values()}
    texts: Any = Texts(getattr(module, "EXAMPLE_ASSETS", {}))
    transcripts = []
    for size in (1, 8):
        store = Store(tmp_path / str(size))
        shop = Workshop(models=held, assets=texts)
        asked = tasks(attack, models)
        outcomes = work(store, asked, shop, concurrency=size)
        assert [o.ending for o in outcomes] == ["done"] * len(asked)
        rows = [store.read(t.spec.run_id)["runs"][0]["steps"] for t in asked]
        transcripts.append(
            [[(s["model_input"], s["model_completions"], s["note"]) for s in r] for r in rows]
        )
    assert transcripts[0] == transcripts[1]
    assert any(text for row in transcripts[0] for _, (text, *_), _ in row)
