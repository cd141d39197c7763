"""Generation: equal to the library's own alone, and bitwise equal to itself in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adversariallm.core.errors import ContextLengthError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference import Engine, Generation, Request
from adversariallm.inference.decode import Decoder

from .conftest import ARCHITECTURES, build, random_ids

LENGTHS = [3, 17, 40, 41, 77, 130, 1, 5, 33]
GREEDY = GenerationConfig(max_new_tokens=10, log_probs=True)
Engines = Callable[..., Engine]


def requests(options: GenerationConfig = GREEDY, **rest: Any) -> list[Request]:
    return [Request(ids, generation=options, **rest) for ids in random_ids(LENGTHS)]


def outcome(rows: list[Generation]) -> list[Any]:
    return [(r.ids, r.log_probs, r.finish_reason) for r in rows]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_ids_are_those_of_the_librarys_unbatched_generate(
    engines: Engines, name: str
) -> None:
    engine = engines(name)
    prompts = random_ids([3, 40, 77])
    ours = engine.generate([Request(p, generation=GREEDY) for p in prompts])
    for prompt, answer in zip(prompts, ours, strict=True):
        tokens = torch.tensor([prompt])
        theirs = engine.forward.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=10, do_sample=False
        )
        assert list(answer.ids) == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ARCHITECTURES),
        *((name, torch.bfloat16) for name in ("llama", "gemma3", "mixtral")),
        *(
            pytest.param(name, torch.bfloat16, marks=pytest.mark.slow)
            for name in ARCHITECTURES
            if name not in ("llama", "gemma3", "mixtral")
        ),
    ],
)
def test_ids_and_log_probs_do_not_depend_on_the_batch(
    engines: Engines, name: str, dtype: torch.dtype
) -> None:
    engine = engines(name, dtype)
    assert engine.report.invariant, engine.report
    asked = requests()
    alone = outcome([engine.generate([r])[0] for r in asked])
    assert outcome(engine.generate(asked)) == alone
    assert outcome(engine.generate(asked[::-1])) == alone[::-1]
    assert outcome(engine.generate([asked[5], asked[0], asked[5]])) == [
        alone[5], alone[0], alone[5]
    ]  # fmt: skip


def test_samples_do_not_depend_on_how_many_are_asked_for(engines: Engines) -> None:
    engine = engines("qwen2")
    options = GenerationConfig(max_new_tokens=8, temperature=1.0, top_p=0.95)
    prompt = random_ids([50])[0]
    stream = Rng.root(7).child("sampling")
    asked = [Request(prompt, generation=options, rng=stream.child(i)) for i in range(19)]
    many = outcome(engine.generate(asked))
    assert outcome(engine.generate(asked[3:4])) == many[3:4]
    assert outcome(engine.generate(asked[:2])) == many[:2]
    assert len({ids for ids, *_ in many}) > 10


def test_rows_leave_and_waiting_rows_enter_without_changing_anything(engines: Engines) -> None:
    engine = engines("llama")
    asked = [
        Request(ids, generation=GenerationConfig(max_new_tokens=1 + 3 * (i % 5), log_probs=True))
        for i, ids in enumerate(random_ids(LENGTHS * 2))
    ]
    alone = outcome([engine.generate([r])[0] for r in asked])
    for places in (4, 20):
        narrow = Engine(engine.forward.model, policy=engine.policy, max_rows=places)
        assert outcome(narrow.generate(asked)) == alone
    assert [len(ids) for ids, *_ in alone] == [1 + 3 * (i % 5) for i in range(len(asked))]


def test_a_stored_prefix_changes_no_bit_and_is_not_charged_again(engines: Engines) -> None:
    engine = engines("gemma3")
    prompts = [random_ids([60])[0] + tail for tail in random_ids([3, 20, 90], seed=5)]
    prefix = engine.prefix(prompts[0][:60])
    plain = engine.generate([Request(p, generation=GREEDY) for p in prompts])
    shared = engine.generate([Request(p, generation=GREEDY, prefix=prefix) for p in prompts])
    assert outcome(plain) == outcome(shared)
    for a, b in zip(plain, shared, strict=True):
        assert a.usage.flops == b.usage.flops + prefix.usage.flops
        assert b.usage.tokens_cached == 60
    whole = engine.prefix(prompts[0])
    again = engine.generate([Request(prompts[0], generation=GREEDY, prefix=whole)])
    assert outcome(again) == outcome(plain[:1])


def test_embeddings_of_ids_continue_as_the_ids_do(engines: Engines) -> None:
    engine = engines("gemma3")  # scales inside its embedding module
    prompts = random_ids([12, 70])
    by_ids = engine.generate([Request(p, generation=GREEDY) for p in prompts])
    soft = [Request(embeddings=engine.embed(p), generation=GREEDY) for p in prompts]
    assert outcome(engine.generate(soft)) == outcome(by_ids)
    mixed = engine.generate([soft[0], Request(prompts[1], generation=GREEDY)])
    assert outcome(mixed) == outcome(by_ids)


def test_stop_ids_end_a_row_and_are_kept(engines: Engines) -> None:
    engine = engines("llama")
    prompt = random_ids([20])[0]
    free = engine.generate([Request(prompt, generation=GREEDY)])[0]
    stop = free.ids[4]
    at = free.ids.index(stop)
    row = engine.generate([Request(prompt, generation=GREEDY, stop_ids=frozenset({stop}))])[0]
    assert (row.ids, row.finish_reason) == (free.ids[: at + 1], "stop")
    longer = GenerationConfig(max_new_tokens=10, min_new_tokens=10)
    row = engine.generate([Request(prompt, generation=longer, stop_ids=frozenset({stop}))])[0]
    assert len(row.ids) == 10 and stop not in row.ids
    assert row.finish_reason == "length"


def test_stop_strings_match_text_not_ids(engines: Engines) -> None:
    engine = engines("llama")
    prompt = random_ids([20])[0]

    def two_bytes(ids: Any) -> str:  # every two ids make one character; half of one is not it
        return bytes(b"\xc3\xa9"[i % 2] for i in range(len(ids))).decode("utf-8", "replace")

    options = GenerationConfig(max_new_tokens=10, stop=("never", "\u00e9\u00e9"))
    row = engine.generate([Request(prompt, generation=options, decode=two_bytes)])[0]
    assert (len(row.ids), row.finish_reason, row.stop_string) == (4, "stop_string", "\u00e9\u00e9")
    replaced = GenerationConfig(max_new_tokens=10, stop=("\ufffd",))
    row = engine.generate([Request(prompt, generation=replaced, decode=two_bytes)])[0]
    assert (len(row.ids), row.stop_string) == (1, "\ufffd")


def test_log_probs_are_those_of_an_uncached_forward(engines: Engines) -> None:
    engine = engines("mistral_window")
    prompt = random_ids([40])[0]
    row = engine.generate([Request(prompt, generation=GREEDY)])[0]
    tokens = torch.tensor([[*prompt, *row.ids]])
    with torch.no_grad():
        expected = engine.forward.model(tokens).logits[0].log_softmax(-1)
    for i, (token, log_prob) in enumerate(zip(row.ids, row.log_probs or (), strict=True)):
        assert log_prob == pytest.approx(float(expected[len(prompt) - 1 + i, token]), abs=1e-3)


def test_the_context_limit_ends_a_row_or_refuses_a_prompt(engines: Engines) -> None:
    engine = engines("llama")
    limit = engine.context_length
    row = engine.generate([Request(random_ids([limit - 3])[0], generation=GREEDY)])[0]
    assert (len(row.ids), row.finish_reason) == (3, "context")
    with pytest.raises(ContextLengthError, match=f"{limit} tokens.*context is {limit}"):
        engine.generate([Request(random_ids([limit])[0], generation=GREEDY)])


def test_requests_without_a_defined_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        Request(())
    with pytest.raises(ValueError, match="either ids or embeddings"):
        Request()
    with pytest.raises(ValueError, match="needs a stream"):
        Request((1,), generation=GenerationConfig(temperature=1.0))
    with pytest.raises(ValueError, match="decode function"):
        Request((1,), generation=GenerationConfig(stop=("x",)))
    with pytest.raises(ValueError, match="forbids every id"):
        Request((1,), allowed=torch.zeros(9, dtype=torch.bool))


def test_a_vocabulary_mask_is_obeyed_and_padding_rows_stay_forbidden(engines: Engines) -> None:
    engine = engines("llama")
    allowed = torch.zeros(50, dtype=torch.bool)
    allowed[40:] = True
    rows = engine.generate(
        [Request(p, generation=GREEDY, allowed=allowed) for p in random_ids([9, 30])]
    )
    assert all(40 <= t < 50 for row in rows for t in row.ids)


def test_non_finite_logits_end_that_row_alone(engines: Engines) -> None:
    engine = engines("llama")
    bad = torch.full((8, 48), float("nan"))
    good = random_ids([8])[0]
    rows = engine.generate([Request(embeddings=bad), Request(good, generation=GREEDY)])
    assert (rows[0].finish_reason, rows[0].error, rows[0].ids) == ("error", "non_finite_logits", ())
    assert outcome(rows[1:]) == outcome(engine.generate([Request(good, generation=GREEDY)]))


def test_running_out_of_memory_halves_the_batch_and_changes_nothing(engines: Engines) -> None:
    engine = engines("qwen2")
    asked = requests(GenerationConfig(max_new_tokens=6, temperature=1.0, log_probs=True),
                     rng=Rng.root(3))  # fmt: skip
    expected = outcome(engine.generate(asked))
    calls = iter(range(1000))

    def failing(*args: Any, **kwargs: Any) -> torch.Tensor:
        if next(calls) > 3 and args[1].shape[1] == 1 and len(args[0].index) > 2:
            raise torch.OutOfMemoryError("simulated")
        return engine.forward(*args, **kwargs)

    with engine.session(), torch.no_grad():
        decoder = Decoder(engine.forward, engine.arch, engine.policy, 64)
        decoder.forward = _Failing(engine.forward, failing)  # type: ignore[assignment]
        assert outcome(decoder.run(asked)) == expected
    assert decoder.max_rows <= 2


class _Failing:
    """A forward that fails on request."""

    def __init__(self, inner: Any, call: Any) -> None:
        self._inner, self._call = inner, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def test_usage_is_useful_work_and_executed_is_more(engines: Engines) -> None:
    engine = engines("llama")
    asked = requests()
    together = engine.generate(asked)
    alone = [engine.generate([r])[0] for r in asked]
    assert [r.usage for r in together] == [r.usage for r in alone]
    first = together[0].usage
    assert (first.queries, first.forward_passes) == (1, 10)
    assert (first.tokens_processed, first.tokens_generated) == (LENGTHS[0] + 9, 10)
    assert all(r.executed > r.usage.flops for r in alone)


def test_the_model_is_left_as_it_was_found() -> None:
    model = build("mixtral").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    settings = (model.config._attn_implementation, model.config._experts_implementation)
    engine = Engine(model)
    engine.generate(requests()[:2])
    engine.gradient(engine.prefix((1, 2)), (3, 4, 5), (1,), (6,))
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert settings == (model.config._attn_implementation, model.config._experts_implementation)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
