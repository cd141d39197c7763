"""The planted model's optimum is what it says: checked by closed formula and by brute force."""

from __future__ import annotations

import itertools

import pytest
import torch

from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Needs, WhiteBoxModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import ModelInput, Segments
from adversariallm.models.planted import SHARPNESS, PlantedModel
from adversariallm.tokenization import Slot

RNG = Rng.root(0)


@pytest.fixture(scope="module")
def model() -> PlantedModel:
    return PlantedModel(secrets=2)


def with_suffix(model: PlantedModel, suffix: str) -> Segments:
    behavior = model.behavior()
    return model.chat.segments(behavior.conversation, Slot(text=suffix), target=behavior.target)


def loss_of(model: PlantedModel, segments: Segments) -> float:
    return float(model.losses([segments.input_ids], [segments.target_ids]).loss[0])


def test_it_keeps_the_white_box_protocol(model: PlantedModel) -> None:
    assert isinstance(model, WhiteBoxModel)
    assert Needs.GRADIENTS in model.gives
    assert Needs.HIDDEN not in model.gives


def test_the_loss_at_full_and_no_score_is_the_formula_by_hand(model: PlantedModel) -> None:
    others = model.num_embeddings - 2
    best = torch.tensor([SHARPNESS, 0.0, *[0.0] * others]).logsumexp(0) - SHARPNESS
    worst = torch.tensor([0.0, SHARPNESS, *[0.0] * others]).logsumexp(0)
    assert model.best_loss == pytest.approx(float(best), abs=1e-5)
    assert loss_of(model, with_suffix(model, " the the")) == pytest.approx(float(worst), abs=1e-5)


def test_the_best_suffix_is_reachable_and_reaches_the_best_loss(model: PlantedModel) -> None:
    segments = with_suffix(model, model.best_suffix)
    assert segments.slot_ids == model.secret_ids
    assert segments.input_ids == model.chat.encode(segments.conversation)
    assert loss_of(model, segments) == pytest.approx(model.best_loss, abs=1e-6)


def test_no_other_suffix_of_that_length_is_better(model: PlantedModel) -> None:
    segments = with_suffix(model, " the the")
    ids = [i for i in range(0, model.num_embeddings, 15)] + list(model.secret_ids)
    pairs = list(itertools.product(ids, repeat=2))
    losses = model.losses(
        [segments.input_with(pair) for pair in pairs], [segments.target_ids] * len(pairs)
    ).loss
    best = losses.min()
    assert float(best) == pytest.approx(model.best_loss, abs=1e-6)
    optimal = {pair for pair, loss in zip(pairs, losses, strict=True) if loss <= best + 1e-6}
    assert optimal == set(itertools.permutations(model.secret_ids))


def test_the_gradient_points_at_the_secret_words(model: PlantedModel) -> None:
    segments = with_suffix(model, " the the")
    gradient = model.gradient(segments.input_ids, segments.slot_positions, segments.target_ids)
    top = model.token_scores(gradient.slot).neg().topk(2).indices
    assert {int(i) for i in top.flatten()} == set(model.secret_ids)
    assert gradient.loss == pytest.approx(loss_of(model, segments), abs=1e-6)


def test_the_gradient_equals_finite_differences(model: PlantedModel) -> None:
    segments = with_suffix(model, " the the")
    slot = segments.slot_positions
    rows = model.embed(segments.slot_ids)
    rows[0, model.secret_ids[0]] = 0.3  # away from the ties of whole tokens

    def loss(changed: torch.Tensor) -> float:
        return model.gradient(
            segments.input_ids, slot, segments.target_ids, slot_embeddings=changed
        ).loss

    found = model.gradient(segments.input_ids, slot, segments.target_ids, slot_embeddings=rows)
    step = 1e-3
    bumped = rows.clone()
    bumped[0, model.secret_ids[0]] += step
    assert float(found.slot[0, model.secret_ids[0]]) == pytest.approx(
        (loss(bumped) - loss(rows)) / step, rel=1e-2
    )


def test_it_refuses_below_half_the_words_and_complies_above(model: PlantedModel) -> None:
    inputs = [
        ModelInput.from_segments(with_suffix(model, suffix))
        for suffix in (" the the", model.best_suffix)
    ]
    replies = model.generate(inputs, GenerationConfig(max_new_tokens=40), [RNG, RNG])
    assert [r.text for r in replies] == [model.refusal, model.answer]
    assert [r.finish_reason for r in replies] == ["stop", "stop"]


def test_a_prefill_is_continued(model: PlantedModel) -> None:
    conversation = with_suffix(model, model.best_suffix).conversation
    given = ModelInput(conversation=conversation, prefill="Sure, here")
    (reply,) = model.generate([given], GenerationConfig(max_new_tokens=40), [RNG])
    assert "Sure, here" + reply.text == model.answer


def test_embedding_inputs_give_what_their_ids_give(model: PlantedModel) -> None:
    segments = with_suffix(model, model.best_suffix)
    soft = model.soft_losses([model.embed(segments.input_ids)], [segments.target_ids])
    assert float(soft.loss[0]) == pytest.approx(loss_of(model, segments), abs=1e-6)
    given = ModelInput(embeddings=model.embed(segments.input_ids))
    (reply,) = model.generate([given], GenerationConfig(max_new_tokens=40), [RNG])
    assert reply.text == model.answer


def test_a_shared_prefix_is_priced_apart(model: PlantedModel) -> None:
    segments = with_suffix(model, model.best_suffix)
    shared = len(segments.before)
    whole = model.losses([segments.input_ids], [segments.target_ids]).work
    split = model.losses([segments.input_ids], [segments.target_ids], shared=shared).work
    assert split.shared.tokens_processed == shared
    assert split.usage.tokens_cached == shared
    total = split.usage.tokens_processed + split.shared.tokens_processed
    assert total == whole.usage.tokens_processed
    with pytest.raises(ValueError, match="do not share"):
        model.losses([(1, 2, 3), (1, 3, 3)], [(4,), (4,)], shared=2)


def test_the_next_logits_are_the_first_answer_positions(model: PlantedModel) -> None:
    segments = with_suffix(model, model.best_suffix)
    logits = model.next_logits([segments.input_ids]).logits
    assert int(logits[0].argmax()) == model.answer_ids[0]


def test_an_empty_target_is_refused(model: PlantedModel) -> None:
    with pytest.raises(ValueError, match="target is empty"):
        model.losses([(1, 2)], [()])


def test_other_seeds_plant_other_words() -> None:
    assert PlantedModel(seed=1).secret_ids != PlantedModel(seed=2).secret_ids
    assert PlantedModel(seed=1).identity() == PlantedModel(seed=1).identity()
