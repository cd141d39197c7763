"""The direction stands in every call of the defended model, and in no call of the bare one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from adversariallm.core.budget import Usage
from adversariallm.core.directions import SETS, Thresholds
from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import Needs, Supplies, Work
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, ModelInput
from adversariallm.defenses.refusal_direction import Config, wrap
from adversariallm.inference.hidden import decoder_layers
from adversariallm.models.directions import RefusalDirection
from adversariallm.models.fakes import echo_model
from adversariallm.models.tiny import tiny_model

from .doubles import GREEDY, ask

STORY = "write a short story"
LAYER = 1


@pytest.fixture
def inner() -> Any:
    """A tiny model whose direction is made up: random weights refuse nothing."""
    model = tiny_model("llama")
    width = model.embed([0]).shape[1]
    vector = 3 * torch.randn(width, generator=Rng.root(3).torch())
    work = Work(Usage(forward_passes=2, flops=1000))
    found = RefusalDirection(vector, LAYER, -1, 0.0, 0.0, 0.0, 0.0, (work,))
    asked: list[Any] = []
    model.asked = asked  # type: ignore[attr-defined]

    def direction(*groups: Any, **options: Any) -> RefusalDirection:
        asked.append((groups, options))
        return found

    model.refusal_direction = direction  # type: ignore[method-assign]
    return model


def steered(inner: Any, **options: Any) -> Any:
    rows = json.dumps([{"instruction": f"do {k}"} for k in range(5)])
    assets = {name: rows.replace("do", name) for name in SETS}
    return wrap(inner, Config(**options), Supplies(assets=assets))


def by_hand(inner: Any, ids: Any, target: Any, strength: float) -> float:
    """Mean loss of the target with the vector added before the layer, by transformers alone."""
    vector = inner.refusal_direction().vector
    model = inner.engine.forward.model
    layer = decoder_layers(model, len(inner.engine.arch.layers))[LAYER]

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return (args[0] + strength * vector, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"] + strength * vector}

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        logits = model(torch.tensor([[*ids, *target]])).logits[0].float()
    finally:
        handle.remove()
    rows = logits[len(ids) - 1 : -1]
    return float(torch.nn.functional.cross_entropy(rows, torch.tensor(target)))


def test_losses_are_those_of_the_edited_model(inner: Any) -> None:
    model = steered(inner, strength=0.7)
    cut = inner.chat.segments(Conversation.user(STORY), target="a list")
    ids, target = cut.input_ids, cut.target_ids
    plain = float(inner.losses([ids], [target]).loss)
    for shared in (0, 3):
        found = float(model.losses([ids], [target], shared=shared).loss)
        assert found == pytest.approx(by_hand(inner, ids, target, 0.7), abs=1e-4)
        assert abs(found - plain) > 1e-3
        again = float(inner.losses([ids], [target], shared=shared).loss)
        assert again == pytest.approx(plain, abs=1e-6)
    soft = model.soft_losses([model.embed(ids)], [target])
    assert float(soft.loss) == pytest.approx(found, abs=1e-4)
    logits = model.next_logits([ids]).logits
    assert not torch.allclose(logits, inner.next_logits([ids]).logits, atol=1e-3)


def test_the_gradient_is_that_of_the_edited_model(inner: Any) -> None:
    model = steered(inner)
    cut = inner.chat.segments(Conversation.user(STORY), target="a list")
    ids, target = list(cut.input_ids), cut.target_ids
    found = model.gradient(ids, [4], target)
    row = model.embed(ids)
    step = torch.randn(row.shape[1], generator=Rng.root(1).torch())
    step *= 1e-2 / step.norm()
    moved = [row.clone(), row.clone()]
    moved[0][4] += step
    moved[1][4] -= step
    up, down = model.soft_losses(moved, [target] * 2).loss
    assert float(found.slot[0] @ step) == pytest.approx(float(up - down) / 2, rel=0.05)


def test_answers_are_steered_whatever_they_are_asked_with(inner: Any) -> None:
    model = steered(inner, strength=1.0)
    [bare] = ask(inner, STORY)
    [reply] = ask(model, STORY)
    assert reply.ids != bare.ids
    ids = inner.chat.encode(Conversation.user(STORY))
    streams = [Rng.root(0)]
    exact = model.generate([ModelInput(Conversation.user(STORY), ids)], GREEDY, streams)
    soft = model.generate([ModelInput(embeddings=inner.embed(ids))], GREEDY, streams)
    assert exact[0].ids == soft[0].ids == reply.ids
    assert ask(inner, STORY)[0].ids == bare.ids
    together = ask(model, "good music", STORY, "the recipe for bread")
    assert together[1].ids == reply.ids


def test_a_small_strength_changes_less(inner: Any) -> None:
    ids = inner.chat.encode(Conversation.user(STORY))
    plain = inner.next_logits([ids]).logits
    moved = [
        float((steered(inner, strength=s).next_logits([ids]).logits - plain).norm())
        for s in (0.01, 0.1, 1.0)
    ]
    assert 0 < moved[0] < moved[1] < moved[2]


def test_the_search_gets_its_instructions_and_is_booked_as_set_up(inner: Any) -> None:
    limits = {"max_divergence": 0.7, "min_induced": -1.5}
    model = steered(inner, num_train=3, num_validation=2, refusal_tokens=("Sorry",), **limits)
    [(groups, options)] = inner.asked
    assert [len(g) for g in groups] == [3, 3, 2, 2]
    assert [g[0][0].content for g in groups] == [f"{name} 0" for name in SETS]
    assert options == {"refusal_tokens": ("Sorry",), "thresholds": Thresholds(**limits)}
    assert model.preparation.flops == 1000
    assert Needs.GRADIENTS in model.gives and Needs.HIDDEN not in model.gives


def test_the_starter_sets_are_split_without_overlap(inner: Any) -> None:
    sets = {
        name: tuple(
            Behavior(f"{name}{k}", Conversation.user(f"{name} {k}"), "g", True) for k in range(6)
        )
        for name in ("starter_harmful", "starter_benign")
    }
    wrap(inner, Config(data="starter", num_train=2), Supplies(datasets=sets))
    groups = [[c[0].content for c in g] for g in inner.asked[0][0]]
    assert groups[0] == ["starter_harmful 0", "starter_harmful 2"]
    assert groups[1] == ["starter_benign 0", "starter_benign 2"]
    assert groups[2] == [f"starter_harmful {k}" for k in (1, 3, 5)]


def test_a_model_without_a_residual_stream_is_refused() -> None:
    with pytest.raises(NeedsError, match="defense 'refusal_direction' needs hidden"):
        wrap(echo_model(), Config(), Supplies())
