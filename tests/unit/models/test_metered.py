"""The metered model books exactly what calls cost, by phase and role, and stops in time."""

from __future__ import annotations

import pytest

from adversariallm.core.budget import Budget, Meter, Usage
from adversariallm.core.errors import BudgetExceededError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import WhiteBoxModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, Reply, Segments
from adversariallm.models.fakes import ScriptedModel, echo_model
from adversariallm.models.metered import MeteredModel
from adversariallm.models.planted import PlantedModel
from adversariallm.tokenization import Slot

GENERATION = GenerationConfig(max_new_tokens=40)
RNG = Rng.root(0)


@pytest.fixture(scope="module")
def planted() -> PlantedModel:
    return PlantedModel()


@pytest.fixture(scope="module")
def segments(planted: PlantedModel) -> Segments:
    behavior = planted.behavior()
    return planted.chat.segments(
        behavior.conversation, Slot(text=planted.best_suffix), target=behavior.target
    )


def test_it_keeps_the_white_box_protocol(planted: PlantedModel) -> None:
    metered = MeteredModel(planted, Meter())
    assert isinstance(metered, WhiteBoxModel)
    assert metered.gives == planted.gives
    assert metered.identity() == planted.identity()
    assert metered.num_embeddings == planted.num_embeddings


def test_every_call_is_booked_with_its_own_work(planted: PlantedModel, segments: Segments) -> None:
    meter = Meter()
    model = MeteredModel(planted, meter)
    ids, target = segments.input_ids, segments.target_ids
    spent = [
        model.losses([ids] * 3, [target] * 3).work.usage,
        model.gradient(ids, segments.slot_positions, target).work.usage,
        model.next_logits([ids]).work.usage,
        model.soft_losses([model.embed(ids)], [target]).work.usage,
        model.generate([segments.conversation], GENERATION, [RNG])[0].usage,
    ]
    total = meter.total.total("optimization", role="model")
    assert total == sum(spent, Usage())
    assert total.queries == 7
    assert total.backward_passes == 1
    assert meter.total.executed["optimization"] > 0


def test_a_shared_prefix_is_booked_once_a_run_and_role(
    planted: PlantedModel, segments: Segments
) -> None:
    meter = Meter()
    shared = len(segments.before)
    target, attacker = MeteredModel(planted, meter), MeteredModel(planted, meter, role="attacker")
    for model in (target, target, attacker):
        model.losses([segments.input_ids], [segments.target_ids], shared=shared)
    whole = len(segments.input_ids) + len(segments.target_ids) - 1
    booked = meter.total.total(role="model")
    assert booked.tokens_processed == shared + 2 * (whole - shared)
    assert booked.tokens_cached == 2 * shared
    assert meter.total.total(role="attacker").tokens_processed == whole


def test_the_search_pays_for_its_prefix_also_after_a_loss_that_is_only_logged(
    planted: PlantedModel, segments: Segments
) -> None:
    meter = Meter()
    shared = len(segments.before)
    model = MeteredModel(planted, meter)

    def ask() -> None:
        model.losses([segments.input_ids], [segments.target_ids], shared=shared)

    whole = len(segments.input_ids) + len(segments.target_ids) - 1
    with meter.phase("diagnosis"):
        ask()
        ask()
    ask()
    ask()
    for phase in ("diagnosis", "optimization"):
        assert meter.total.total(phase).tokens_processed == whole + (whole - shared)


def test_what_is_only_logged_uses_the_prefix_that_the_search_paid_for(
    planted: PlantedModel, segments: Segments
) -> None:
    meter = Meter()
    shared = len(segments.before)
    model = MeteredModel(planted, meter)
    model.losses([segments.input_ids], [segments.target_ids], shared=shared)
    with meter.phase("diagnosis"):
        model.losses([segments.input_ids], [segments.target_ids], shared=shared)
    whole = len(segments.input_ids) + len(segments.target_ids) - 1
    assert meter.total.total("optimization").tokens_processed == whole
    assert meter.total.total("diagnosis").tokens_processed == whole - shared


def test_work_is_booked_under_the_surrounding_phase(planted: PlantedModel) -> None:
    meter = Meter()
    model = MeteredModel(planted, meter)
    with meter.phase("diagnosis"):
        model.generate([Conversation.user("a")], GENERATION, [RNG])
    assert meter.total.total("optimization") == Usage()
    assert meter.total.total("diagnosis", role="model").queries == 1


def test_a_batch_that_would_pass_the_limit_is_never_sent() -> None:
    inner = ScriptedModel([Reply("a", usage=Usage(queries=1))])
    model = MeteredModel(inner, Meter(Budget(queries=3)))
    model.generate([Conversation.user("a")] * 2, GENERATION, [RNG] * 2)
    with pytest.raises(BudgetExceededError, match=r"budget\.queries=3"):
        model.generate([Conversation.user("a")] * 2, GENERATION, [RNG] * 2)
    assert len(inner.calls) == 2
    model.generate([Conversation.user("a")], GENERATION, [RNG])
    assert len(inner.calls) == 3


def test_a_defenses_own_work_is_booked_as_defense() -> None:
    spent = Usage(queries=2, tokens_processed=9)
    inner = ScriptedModel([Reply("a", usage=Usage(queries=1), defense_usage=spent)])
    meter = Meter()
    MeteredModel(inner, meter).generate([Conversation.user("a")], GENERATION, [RNG])
    assert meter.total.total(role="defense") == spent
    assert meter.total.total(role="model").queries == 1


def test_what_a_model_does_not_give_is_refused_with_the_reason() -> None:
    model = MeteredModel(echo_model(), Meter())
    with pytest.raises(NeedsError, match=r"'echo' does not give logits, it gives text"):
        model.losses([(1,)], [(2,)])
    with pytest.raises(NeedsError, match="tokens"):
        _ = model.chat
