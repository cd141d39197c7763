"""GCG where other implementations go wrong: neighbors, buffers, early stops, weights, targets."""

from __future__ import annotations

import gc
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.attacks import gcg, gcg_refusal
from adversariallm.core.directions import SETS, Thresholds
from adversariallm.core.types import Reply
from adversariallm.models.local import LocalModel
from adversariallm.models.planted import PlantedModel
from adversariallm.models.tiny import tiny_parts
from adversariallm.runs.presets import presets

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
import harness  # noqa: E402
import invariants  # noqa: E402
from harness import behaviors, run  # noqa: E402

WORDS = {"initial": "! ! ! ! ! !", "search_width": 64, "topk": 64}


@pytest.fixture
def planted() -> PlantedModel:
    return PlantedModel()


def test_smoothing_averages_over_the_suffix_and_neighbors_of_allowed_ids(
    planted: PlantedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    original = gcg.SlotProblem.gradient

    def watching(self: gcg.SlotProblem, slot: torch.Tensor, *args: Any, **rest: Any) -> Any:
        seen.append(slot.clone())
        return original(self, slot, *args, **rest)

    monkeypatch.setattr(gcg.SlotProblem, "gradient", watching)
    options = {**WORDS, "num_steps": 1, "grad_smoothing": 60}
    run("gcg", planted, [planted.behavior()], options=options)
    start, *neighbors = seen
    assert len(neighbors) == 59
    allowed = planted.chat.mask(planted.num_embeddings)
    drawn = {int(n[n != start][0]) for n in neighbors if bool((n != start).any())}
    assert all(int((n != start).sum()) <= 1 for n in neighbors)
    assert all(bool(allowed[i]) for i in drawn)
    assert max(drawn) > planted.num_embeddings // 2  # from the whole vocabulary


@pytest.mark.parametrize("size", [1, 2, 4])
def test_with_a_buffer_the_recorded_loss_is_that_of_the_recorded_text(
    planted: PlantedModel, size: int
) -> None:
    options = {**WORDS, "num_steps": 6, "search_width": 4, "buffer_size": size}
    document = run("gcg", planted, [planted.behavior()], options=options)
    compared = invariants.recorded_losses(document, planted, planted.behavior(), tolerance=1e-5)
    assert compared == 7


def test_a_start_that_already_matches_ends_the_search_at_step_zero(planted: PlantedModel) -> None:
    options = {**WORDS, "initial": "! !" + planted.best_suffix, "early_stop": True}
    document = run("gcg", planted, [planted.behavior()], options={**options, "num_steps": 5})
    assert [s.step for s in document.runs[0].steps] == [0]


def test_tokens_beyond_ascii_can_be_allowed() -> None:
    model = harness.contract_model()
    options = {"allow_non_ascii": True, "num_steps": 2}
    document = run("gcg", model, [behaviors()[0]], options=options)
    assert document.status == "done"
    invariants.recorded_ids(document, model)


def test_weights_get_no_gradient_and_no_memory_is_collected_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = tiny_parts("llama")
    model: Any = LocalModel.from_parts(parts.model, parts.tokenizer, name="tiny-llama")
    collected: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda *args: collected.append("collect") or 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: collected.append("empty_cache"))
    run("gcg", model, [behaviors()[0]])
    assert all(p.grad is None for p in parts.model.parameters())
    assert not collected


def test_a_pad_id_inside_the_prompt_is_read_like_any_other() -> None:
    """Where pad is the end of a turn, a mask from `ids != pad` would hide real tokens."""
    parts = tiny_parts("llama")
    parts.tokenizer.pad_token = "<|end|>"
    end = parts.tokenizer.pad_token_id
    parts.model.config.pad_token_id = end
    model: Any = LocalModel.from_parts(parts.model, parts.tokenizer, name="tiny-llama")
    talks = [b.conversation for b in behaviors()]
    inputs = [model.chat.encode(talk) for talk in talks]
    assert [ids.count(end) for ids in inputs] == [1, 2, 3]
    target = model.chat.codec.encode(harness.TARGET)
    found = model.losses(inputs, [target] * 3).loss
    for ids, loss in zip(inputs, found.tolist(), strict=True):
        tokens = torch.tensor([[*ids, *target]])
        logits = parts.model(tokens, use_cache=False).logits[0, len(ids) - 1 : -1].detach()
        plain = torch.nn.functional.cross_entropy(logits, torch.tensor(target))
        assert loss == pytest.approx(float(plain), abs=1e-4)


def test_a_wrong_option_of_the_inner_gcg_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match="search_width"):
        gcg_refusal.Config(gcg={"search_width": 0})
    with pytest.raises(ValueError, match="searchwidth"):
        gcg_refusal.Config(gcg={"searchwidth": 3})


def test_the_identity_of_a_refusal_run_is_that_of_the_gcg_which_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = harness.contract_model()

    def run_id(**options: Any) -> str:
        fit = [behaviors()[0]]
        return harness.spec("gcg_refusal", model, fit, options={"gcg": options}).spec.run_id

    assert run_id() == run_id(num_steps=500) != run_id(num_steps=501)
    recorded = gcg_refusal.Config().semantic()["gcg"]
    assert recorded == gcg.Config().semantic()  # a new default is another run
    assert gcg_refusal.Config(**gcg_refusal.Config().semantic()) == gcg_refusal.Config()
    raised = replace(gcg.INFO, version=gcg.INFO.version + 1)
    before = gcg_refusal.INFO.version
    monkeypatch.setattr(gcg, "INFO", raised)
    again = runpy.run_path(str(gcg_refusal.__file__))
    assert again["INFO"].version == before + 1


def test_the_refusal_preset_is_the_toolboxs_and_its_gcg_that_of_gcg() -> None:
    options = presets("gcg_refusal")["adversariallm"].options
    config = gcg_refusal.Config(**options)
    assert (config.num_train, config.num_validation) == (512, 256)
    assert config.refusal_tokens == ("I",) and config.max_target_tokens == 64
    assert config.gcg == gcg.Config(**presets("gcg")["adversariallm"].options)


class Ablated:
    """A model whose ablated answer is scripted."""

    def __init__(self, answer: Reply) -> None:
        self._model = harness.contract_model()
        self.answer = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate_without(self, direction: Any, inputs: Any, generation: Any, rngs: Any) -> Any:
        return [self.answer] * len(inputs)


@pytest.mark.parametrize(
    ("reply", "target", "flagged"),
    [
        (Reply("Here is a list", finish_reason="stop"), "Here is a list", False),
        (Reply("Here is a lis", finish_reason="length"), "Here is a", False),
        (Reply("I cannot do that", finish_reason="stop"), harness.TARGET, True),
        (Reply("  ", finish_reason="stop"), harness.TARGET, True),
    ],
)
def test_a_target_that_is_no_use_gives_way_and_a_cut_word_goes(
    reply: Reply, target: str, flagged: bool
) -> None:
    model = Ablated(reply)
    document = run("gcg_refusal", model, [behaviors()[0]])
    assert document.runs[0].original_prompt == behaviors()[0].conversation.to_dicts()
    for step in document.runs[0].steps:
        assert step.note["target"] == target
        assert ("ablated_target_refused" in step.flags) == flagged
        assert step.completions


def test_the_search_for_a_direction_gets_as_many_instructions_as_asked_for_and_the_limits() -> None:
    rows = json.dumps([{"instruction": f"say {k}"} for k in range(5)])
    assets = {name: rows.replace("say", name) for name in SETS}
    model = harness.contract_model()
    asked: list[Any] = []
    found = model.refusal_direction()

    def direction(*groups: Any, account: Any, **options: Any) -> Any:
        asked.append((groups, options))
        return found

    model.refusal_direction = direction
    limits = {"max_divergence": 0.4, "min_induced": -2.0}
    options = {"num_train": 3, "num_validation": 2, "refusal_tokens": ("Sorry",), **limits}
    run("gcg_refusal", model, [behaviors()[0]], options=options, given={"assets": assets})
    [(groups, given)] = asked
    assert [[talk[0].content for talk in group] for group in groups] == [
        [f"{name} {k}" for k in range(3 if "train" in name else 2)] for name in SETS
    ]
    assert given == {"refusal_tokens": ("Sorry",), "thresholds": Thresholds(**limits)}
