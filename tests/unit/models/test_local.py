"""The local model against plain transformers calls: answers, losses, gradients, costs, refusals."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from adversariallm.core.errors import ContextLengthError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Needs, WhiteBoxModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Segments
from adversariallm.inference.numerics import SAFE_POLICY
from adversariallm.models.identity import state_hash
from adversariallm.models.local import KEPT_PREFIXES, LocalModel
from adversariallm.models.tiny import Parts, tiny_parts
from adversariallm.tokenization import Slot

RNG = Rng.root(0)
ASK = Conversation.user("the garden can explain a short story")
GREEDY = GenerationConfig(max_new_tokens=12)


@pytest.fixture(scope="module")
def parts() -> Parts:
    return tiny_parts("gemma2")  # scaled embeddings, soft-capping, a sliding window


@pytest.fixture(scope="module")
def model(parts: Parts) -> LocalModel:
    return LocalModel.from_parts(parts.model, parts.tokenizer, policy=SAFE_POLICY)


@pytest.fixture(scope="module")
def segments(model: LocalModel) -> Segments:
    return model.chat.segments(ASK, Slot(text=" good music"), target="Sure, here")


def hf_greedy(parts: Parts, ids: tuple[int, ...], stops: frozenset[int], new: int) -> list[int]:
    """Greedy decoding by repeated full forwards."""
    row = list(ids)
    for _ in range(new):
        row.append(int(parts.model(torch.tensor([row])).logits[0, -1].argmax()))
        if row[-1] in stops:
            break
    return row[len(ids) :]


def hf_loss(parts: Parts, rows: torch.Tensor, target: tuple[int, ...]) -> torch.Tensor:
    """Mean cross-entropy of the target after embedding rows `[P, d]`, by one plain forward.

    `rows` are what the embedding module returns, so its own scale must not be applied again: the
    oracle replaces the module's output by a hook.
    """
    ids = torch.zeros(1, len(rows) + len(target), dtype=torch.long)
    ids[0, len(rows) :] = torch.tensor(target)
    embedding = parts.model.get_input_embeddings()

    def swap(_: torch.nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[None], output[:, len(rows) :]], dim=1)

    handle = embedding.register_forward_hook(swap)
    try:
        logits = parts.model(input_ids=ids).logits[0]
    finally:
        handle.remove()
    return F.cross_entropy(logits[len(rows) - 1 : -1].float(), torch.tensor(target))


def test_it_keeps_the_white_box_protocol(model: LocalModel) -> None:
    assert isinstance(model, WhiteBoxModel)
    assert model.gives == Needs.white_box()


def test_greedy_answers_equal_repeated_full_forwards(model: LocalModel, parts: Parts) -> None:
    talks = [ASK, Conversation.user("a"), ASK.append("assistant", "b").append("user", "the clock")]
    replies = model.generate(talks, GREEDY, [RNG] * 3)
    for talk, reply in zip(talks, replies, strict=True):
        ids = model.chat.encode(talk)
        assert list(reply.ids or ()) == hf_greedy(parts, ids, model.stop_ids, 12)
        assert reply.text == model.chat.decode_reply(ids, reply.ids or ())


def test_a_sample_depends_on_its_stream_not_on_its_batch(model: LocalModel) -> None:
    options = GenerationConfig(temperature=1.0, max_new_tokens=8)
    streams = [RNG.child(i) for i in range(5)]
    together = model.generate([ASK] * 5, options, streams)
    alone = [model.generate([ASK], options, [s])[0] for s in streams]
    assert [r.ids for r in together] == [r.ids for r in alone]
    assert len({r.ids for r in together}) > 1


def test_ids_are_sent_as_given_and_embeddings_give_the_same(model: LocalModel) -> None:
    ids = model.chat.encode(ASK)
    given = [
        ModelInput(conversation=ASK),
        ModelInput(conversation=ASK, ids=ids),
        ModelInput(embeddings=model.embed(ids)),
    ]
    first, second, third = model.generate(given, GREEDY, [RNG] * 3)
    assert first.ids == second.ids == third.ids


def test_a_prefill_is_part_of_the_input_and_not_of_the_reply(model: LocalModel) -> None:
    given = ModelInput(conversation=ASK, prefill="the small town")
    (reply,) = model.generate([given], GREEDY, [RNG])
    ids = model.chat.encode(ASK, prefill="the small town")
    (same,) = model.generate([ModelInput(conversation=ASK, ids=ids)], GREEDY, [RNG])
    assert reply.ids == same.ids


def test_stop_strings_end_the_text(model: LocalModel) -> None:
    talks = [Conversation.user(word) for word in ("the clock", "a river", "good music", "sorry")]
    whole = model.generate(talks, GREEDY, [RNG] * 4)
    talk, text = max(zip(talks, (r.text for r in whole), strict=True), key=lambda p: len(p[1]))
    stop = text[len(text) // 2 :][:3]
    (cut,) = model.generate([talk], GREEDY.model_copy(update={"stop": (stop,)}), [RNG])
    assert len(stop) == 3
    assert cut.text == text.partition(stop)[0]
    assert cut.finish_reason == "stop_string"


def test_an_input_without_room_fails_alone(parts: Parts) -> None:
    model = LocalModel.from_parts(
        parts.model, parts.tokenizer, policy=SAFE_POLICY, context_length=16
    )
    long = Conversation.user("the " * 40)
    options = GREEDY.model_copy(update={"min_new_tokens": 12})
    short, failed = model.generate([Conversation.user("a"), long], options, [RNG] * 2)
    assert short.error is None
    assert len(model.chat.encode(Conversation.user("a"))) + len(short.ids or ()) == 16
    assert short.finish_reason == "context"
    assert (failed.error, failed.finish_reason, failed.text) == ("context_length", "context", "")
    with pytest.raises(ContextLengthError, match=r"do not fit the context .*\(16\)"):
        model.losses([model.chat.encode(long)], [(1,)])


def test_a_schema_constrains_helpers_and_only_where_asked(model: LocalModel) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 10}},
        "required": ["score"],
        "additionalProperties": False,
    }
    options = GenerationConfig(max_new_tokens=40, temperature=1.0)
    streams = [RNG.child("json", i) for i in range(4)]
    for reply in model.generate([ASK] * 4, options, streams, json_schema=schema):
        assert 1 <= json.loads(reply.text)["score"] <= 10


def test_threads_that_share_batches_get_the_same_replies(model: LocalModel) -> None:
    options = GenerationConfig(temperature=1.0, max_new_tokens=6)
    talks = [Conversation.user(f"a list of {n} names") for n in range(6)]
    streams = [RNG.child(n) for n in range(6)]
    alone = model.generate(talks, options, streams)

    def ask(n: int) -> tuple[int, ...] | None:
        return model.generate([talks[n]], options, [streams[n]])[0].ids

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, range(6))) == [r.ids for r in alone]


def test_losses_equal_a_plain_forward(model: LocalModel, parts: Parts, segments: Segments) -> None:
    rows = [segments.input_ids, segments.input_with([40, 41, 42])]
    found = model.losses(rows, [segments.target_ids] * 2)
    for i, ids in enumerate(rows):
        expected = hf_loss(parts, model.embed(ids), segments.target_ids)
        assert float(found.loss[i]) == pytest.approx(float(expected), abs=1e-5)
        assert found.per_token[i].mean() == pytest.approx(float(found.loss[i]), abs=1e-6)


def test_a_shared_prefix_changes_the_price_and_not_the_loss(
    model: LocalModel, segments: Segments
) -> None:
    shared = len(segments.before)
    rows = [segments.input_ids, segments.input_with([40, 41])]
    targets = [segments.target_ids] * 2
    whole, split = model.losses(rows, targets), model.losses(rows, targets, shared=shared)
    torch.testing.assert_close(split.loss, whole.loss, atol=1e-5, rtol=0)
    assert split.work.usage.tokens_cached == 2 * shared
    assert split.work.shared.tokens_processed == shared
    again = model.losses(rows, targets, shared=shared)
    assert again.work.shared_key == split.work.shared_key
    assert again.work.usage == split.work.usage
    with pytest.raises(ValueError, match="same 3 ids"):
        model.losses([(1, 2, 3, 4), (1, 2, 4, 4)], targets, shared=3)


def test_only_a_few_prefixes_are_kept(parts: Parts) -> None:
    model = LocalModel.from_parts(parts.model, parts.tokenizer, policy=SAFE_POLICY)
    for i in range(KEPT_PREFIXES + 3):
        model.next_logits([(1, 40 + i, 5)], shared=2)
    assert len(model._prefixes) == KEPT_PREFIXES


@pytest.mark.parametrize("cached", [False, True])
def test_the_gradient_equals_autograd_through_a_plain_forward(
    model: LocalModel, parts: Parts, segments: Segments, cached: bool
) -> None:
    slot = list(segments.slot_positions)
    found = model.gradient(
        segments.input_ids,
        slot,
        segments.target_ids,
        shared=len(segments.before) if cached else 0,
    )
    leaf = model.embed(segments.slot_ids).requires_grad_(True)
    rows = model.embed(segments.input_ids).index_copy(0, torch.tensor(slot), leaf)
    loss = hf_loss(parts, rows, segments.target_ids)
    (expected,) = torch.autograd.grad(loss, leaf)
    assert found.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    torch.testing.assert_close(found.slot, expected, atol=1e-5, rtol=1e-3)
    scores = model.token_scores(found.slot)
    torch.testing.assert_close(scores, found.slot @ model.embedding_matrix().T)


def test_a_slot_inside_the_shared_prefix_is_refused(model: LocalModel) -> None:
    with pytest.raises(ValueError, match="slot positions"):
        model.gradient((1, 40, 41, 42), [1], (43,), shared=2)


def test_soft_losses_and_next_logits_agree_with_ids(
    model: LocalModel, parts: Parts, segments: Segments
) -> None:
    ids = segments.input_ids
    soft = model.soft_losses([model.embed(ids)], [segments.target_ids])
    hard = model.losses([ids], [segments.target_ids])
    torch.testing.assert_close(soft.loss, hard.loss, atol=1e-5, rtol=0)
    logits = model.next_logits([ids]).logits
    plain = parts.model(torch.tensor([list(ids)])).logits[0, -1]
    torch.testing.assert_close(logits[0], plain.float(), atol=1e-4, rtol=1e-4)


def test_queries_count_sequences(model: LocalModel, segments: Segments) -> None:
    rows, targets = [segments.input_ids] * 3, [segments.target_ids] * 3
    assert model.losses(rows, targets).work.usage.queries == 3
    assert sum(r.usage.queries for r in model.generate([ASK] * 4, GREEDY, [RNG] * 4)) == 4


def test_the_objects_are_left_as_they_were_found() -> None:
    model, tokenizer = tiny_parts()
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    before = state_hash(model), model.config._attn_implementation
    wrapped = LocalModel.from_parts(model, tokenizer, policy=SAFE_POLICY)
    wrapped.generate([ASK], GREEDY, [RNG])
    wrapped.gradient((1, 40, 41), [1], (42,))
    assert (state_hash(model), model.config._attn_implementation) == before
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_traits_are_probed(model: LocalModel, parts: Parts) -> None:
    traits = model.traits
    assert traits.num_embeddings == model.num_embeddings == len(parts.tokenizer) + 8
    assert traits.rows_without_id == 8
    assert traits.ids_without_row == ()
    assert traits.embedding_scale == pytest.approx(48**0.5, rel=1e-3)
    assert traits.stop_ids == (parts.tokenizer.eos_token_id,)
    assert traits.sliding_layers == 1
    assert not traits.tied_head
    assert traits.system_role


def test_a_tied_head_is_seen() -> None:
    model, tokenizer = tiny_parts(tied=True)
    assert LocalModel.from_parts(model, tokenizer, policy=SAFE_POLICY).traits.tied_head


def test_a_self_check_is_made_once_for_a_shape_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVERSARIALLM_CACHE", str(tmp_path))
    first = LocalModel.from_parts(*tiny_parts(seed=1)).engine.report
    assert first.invariant is not None
    monkeypatch.setattr("adversariallm.inference.selfcheck.measure_policy", lambda _: 1 / 0)
    assert LocalModel.from_parts(*tiny_parts(seed=2)).engine.report == first
    with pytest.raises(ZeroDivisionError):
        LocalModel.from_parts(*tiny_parts(layers=3))
    (kept,) = (tmp_path / "selfcheck").iterdir()
    kept.write_text("damaged", encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        LocalModel.from_parts(*tiny_parts(seed=2))


def test_ids_without_an_embedding_row_are_found() -> None:
    model, tokenizer = tiny_parts()
    tokenizer.add_tokens([f"<extra_{i}>" for i in range(12)])
    traits = LocalModel.from_parts(model, tokenizer, policy=SAFE_POLICY).traits
    assert len(traits.ids_without_row) == 4
    assert min(traits.ids_without_row) == model.get_input_embeddings().weight.shape[0]


def test_the_demo_model_answers(smollm2: LocalModel) -> None:
    (reply,) = smollm2.generate(
        [Conversation.user("What is 2+2?")], GenerationConfig(max_new_tokens=16), [RNG]
    )
    assert "4" in reply.text
    assert reply.finish_reason == "stop"
