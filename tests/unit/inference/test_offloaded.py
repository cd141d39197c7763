"""Models whose weights lie elsewhere (accelerate hooks over CPU and disk), and sharded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model  # type: ignore[import-untyped]

from adversariallm.core.generation import GenerationConfig
from adversariallm.inference import Engine, Request

from .conftest import build, random_ids


def _hooked(kind: str, folder: Path) -> Any:
    model = build("llama")
    if kind == "cpu":
        return cpu_offload(model, execution_device=torch.device("cpu"))
    if kind == "disk":
        return disk_offload(model, str(folder), execution_device=torch.device("cpu"))
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
                  "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}  # fmt: skip
    return dispatch_model(
        model, device_map, main_device="cpu", offload_dir=str(folder), force_hooks=True
    )


@pytest.mark.parametrize("kind", ["cpu", "disk", "sharded"])
def test_hooked_models_give_the_bits_gradients_and_costs_of_the_whole_model(
    kind: str, tmp_path: Path
) -> None:
    whole = Engine(build("llama"))
    hooked = Engine(_hooked(kind, tmp_path), policy=whole.policy)
    prompts = random_ids([3, 17, 40])
    requests = [Request(p, generation=GenerationConfig(max_new_tokens=6)) for p in prompts]
    found, wanted = hooked.generate(requests), whole.generate(requests)
    assert [f.ids for f in found] == [w.ids for w in wanted]
    assert [f.usage for f in found] == [w.usage for w in wanted]
    assert [hooked.generate([r])[0].ids for r in requests] == [w.ids for w in wanted]
    slot, rest, target = prompts[1][:4], prompts[1], prompts[0]
    scored = [e.losses(e.prefix(prompts[2]), [rest, slot], [target] * 2) for e in (hooked, whole)]
    assert torch.equal(scored[0].loss, scored[1].loss)
    assert scored[0].work.usage == scored[1].work.usage
    gradients = [e.gradient(e.prefix(prompts[2]), rest, range(4), target) for e in (hooked, whole)]
    assert torch.equal(gradients[0].slot, gradients[1].slot)
    assert gradients[0].work.usage == gradients[1].work.usage


def test_the_self_check_runs_on_an_offloaded_model(tmp_path: Path) -> None:
    report = Engine(_hooked("disk", tmp_path)).report
    assert report.invariant
    assert report.policy.kernel == Engine(build("llama")).report.policy.kernel
