"""The refusal direction against a search written with plain transformers calls and hooks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from adversariallm.core.budget import Budget, Meter
from adversariallm.core.directions import Thresholds
from adversariallm.core.errors import BudgetExceededError, ModelError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation
from adversariallm.inference.numerics import SAFE_POLICY
from adversariallm.models.directions import (
    Prompts,
    RefusalDirection,
    common_prefix,
    common_suffix,
    find_refusal_direction,
    refusal_scores,
)
from adversariallm.models.local import LocalModel
from adversariallm.models.metered import MeteredModel
from adversariallm.models.tiny import Parts, tiny_parts

WIDE = Thresholds(max_divergence=5.0, min_induced=-10.0)
RNG = Rng.root(0)
TAILS = ["a short story", "good music", "the weather", "a long list", "the first step", "names"]
REFUSED, ANSWERED = "the clock refuses", "my neighbor can explain"


@pytest.fixture(scope="module")
def parts() -> Parts:
    return tiny_parts(layers=3)


@pytest.fixture(scope="module")
def model(parts: Parts) -> LocalModel:
    return LocalModel.from_parts(parts.model, parts.tokenizer, policy=SAFE_POLICY)


@pytest.fixture(scope="module")
def prompts(model: LocalModel) -> Prompts:
    def encoded(word: str, tails: Sequence[str]) -> list[tuple[int, ...]]:
        return [model.chat.encode(Conversation.user(f"{word} {tail}")) for tail in tails]

    return Prompts(
        encoded(REFUSED, TAILS[:4]),
        encoded(ANSWERED, TAILS[:4]),
        encoded(REFUSED, TAILS[4:]),
        encoded(ANSWERED, TAILS[4:]),
    )


def next_logits(parts: Parts, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([parts.model(torch.tensor([list(r)])).logits[0, -1] for r in rows])


@pytest.fixture(scope="module")
def refusal_ids(parts: Parts, prompts: Prompts) -> list[int]:
    """Ids that together are likelier than not after harmful prompts and not after harmless ones."""
    harmful = next_logits(parts, [*prompts.harmful, *prompts.harmful_validation]).softmax(-1)
    harmless = next_logits(parts, [*prompts.harmless, *prompts.harmless_validation]).softmax(-1)
    yes, no = harmful.mean(0), harmless.mean(0)
    order = (yes / no).argsort(descending=True)
    half = int((((yes + no) / 2)[order].cumsum(0) < 0.5).sum())
    return [int(i) for i in order[:half]]


@contextmanager
def hooked(
    parts: Parts, edit: Callable[[torch.Tensor], torch.Tensor], layer: int | None
) -> Iterator[None]:
    """Edit block inputs (of one layer, or of all with the writes of attention and MLP)."""
    blocks = parts.model.model.layers

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (edit(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": edit(kwargs["hidden_states"])}

    def after(_: Any, __: Any, output: Any) -> Any:
        return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)

    handles = []
    for i, block in enumerate(blocks):
        if layer in (None, i):
            handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        if layer is None:
            handles += [m.register_forward_hook(after) for m in (block.self_attn, block.mlp)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def each_score(parts: Parts, rows: Sequence[Sequence[int]], ids: Sequence[int]) -> torch.Tensor:
    p = next_logits(parts, rows).double().softmax(-1)[:, list(ids)].sum(-1)
    return (p / (1 - p)).log()


def scores(parts: Parts, rows: Sequence[Sequence[int]], ids: Sequence[int]) -> float:
    return float(each_score(parts, rows, ids).mean())


def showing(parts: Parts, prompts: Prompts, ids: Sequence[int]) -> Prompts:
    """The prompts on which the model behaves as their kind should."""

    def kept(rows: Sequence[Sequence[int]], refuses: bool) -> list[Sequence[int]]:
        signs = each_score(parts, rows, ids) > 0
        return [row for row, sign in zip(rows, signs, strict=True) if bool(sign) == refuses]

    return Prompts(
        kept(prompts.harmful, True),
        kept(prompts.harmless, False),
        kept(prompts.harmful_validation, True),
        kept(prompts.harmless_validation, False),
    )


Table = dict[tuple[int, int], list[float]]


def oracle(parts: Parts, prompts: Prompts, ids: Sequence[int]) -> Table:
    """Refusal, divergence and induced refusal of every layer and position."""

    def means(rows: Sequence[Sequence[int]], layer: int, at: int) -> torch.Tensor:
        states = []
        for row in rows:
            out = parts.model(torch.tensor([list(row)]), output_hidden_states=True)
            states.append(out.hidden_states[layer][0, at])
        return torch.stack(states).mean(0)

    found: Table = {}
    tail = common_suffix([*prompts.harmful, *prompts.harmless])
    with torch.no_grad():
        plain = next_logits(parts, prompts.harmless_validation).double().log_softmax(-1)
        for layer, at in itertools.product(range(2), range(-tail, 0)):
            v = means(prompts.harmful, layer, at) - means(prompts.harmless, layer, at)
            if v.norm() == 0:
                continue
            unit = v / v.norm()
            with hooked(parts, lambda x, u=unit: x - (x @ u)[..., None] * u, None):
                refusal = scores(parts, prompts.harmful_validation, ids)
                after = next_logits(parts, prompts.harmless_validation).double().log_softmax(-1)
            with hooked(parts, lambda x, v=v: x + v, layer):
                induced = scores(parts, prompts.harmless_validation, ids)
            kl = float((plain.exp() * (plain - after)).sum(-1).mean())
            found[layer, at] = [refusal, kl, induced]
    return found


@pytest.fixture(scope="module")
def found(model: LocalModel, prompts: Prompts, refusal_ids: list[int]) -> RefusalDirection:
    return find_refusal_direction(model.engine, prompts, refusal_ids, WIDE)


def test_the_choice_and_its_measures_equal_the_plain_search(
    found: RefusalDirection, parts: Parts, prompts: Prompts, refusal_ids: list[int]
) -> None:
    kept = showing(parts, prompts, refusal_ids)
    table = oracle(parts, kept, refusal_ids)
    assert len(table) == 2  # the template's two ids at layer 1; at layer 0 they are constants
    admissible = {k: v for k, v in table.items() if v[1] <= 5.0 and v[2] >= -10.0}
    best = min(admissible, key=lambda k: (admissible[k][0], *k))
    assert (found.layer, found.position) == best
    measured = [found.refusal, found.divergence, found.induced]
    assert measured == pytest.approx(table[best], abs=1e-3)
    assert found.baseline == pytest.approx(
        scores(parts, kept.harmful_validation, refusal_ids), abs=1e-4
    )


@pytest.mark.parametrize(
    "wanted", [Thresholds(max_divergence=1e-9, min_induced=-10.0), Thresholds(5.0, 50.0)]
)
def test_the_error_names_the_limit_that_admits_a_direction_and_that_limit_does(
    model: LocalModel, prompts: Prompts, refusal_ids: list[int], wanted: Thresholds
) -> None:
    with pytest.raises(ModelError, match="none of 2 directions is admissible") as caught:
        find_refusal_direction(model.engine, prompts, refusal_ids, wanted)
    said = re.findall(r"(max_divergence|min_induced)=(\S+) admits layer (\d+)", str(caught.value))
    ((name, value, layer),) = said
    wider = replace(wanted, **{name: float(value)})
    assert find_refusal_direction(model.engine, prompts, refusal_ids, wider).layer == int(layer)
    tighter = replace(
        wanted, **{name: float(value) + (-1 if name == "max_divergence" else 1) / 500}
    )
    with pytest.raises(ModelError, match="none of 2"):
        find_refusal_direction(model.engine, prompts, refusal_ids, tighter)


def test_the_error_without_one_limit_that_would_do_names_the_closest(
    model: LocalModel, prompts: Prompts, refusal_ids: list[int]
) -> None:
    with pytest.raises(ModelError, match=r"closest in divergence is layer \d+ position -\d+ \("):
        find_refusal_direction(model.engine, prompts, refusal_ids, Thresholds(0.0, 50.0))


def test_an_instruction_set_without_refusals_is_an_error(
    model: LocalModel, prompts: Prompts, refusal_ids: list[int]
) -> None:
    swapped = Prompts(
        prompts.harmless, prompts.harmful, prompts.harmless_validation, prompts.harmful_validation
    )
    with pytest.raises(ModelError, match="shows no refusal"):
        find_refusal_direction(model.engine, swapped, refusal_ids, WIDE)
    with pytest.raises(ModelError, match="no refusal token"):
        find_refusal_direction(model.engine, prompts, [], WIDE)


def test_scores_are_log_odds() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    assert float(refusal_scores(logits, [0])) == pytest.approx(torch.tensor(1 / 3).log().item())
    assert float(refusal_scores(logits, [0, 1])) == pytest.approx(0.0)


def test_the_positions_are_what_the_template_writes_after_an_instruction(prompts: Prompts) -> None:
    assert common_suffix([*prompts.harmful, *prompts.harmless]) == 2
    assert common_suffix([(1, 2), (1, 2)]) == 2
    assert common_suffix([(1, 2), (1, 3)]) == 1


def test_what_stands_before_an_instruction_is_computed_once_and_never_all_of_it() -> None:
    assert common_prefix([(1, 2, 3), (1, 2, 4, 5)]) == 2
    assert common_prefix([(1, 2), (1, 2)]) == common_prefix([(1, 2), (1, 2, 3)]) == 1
    assert common_prefix([(1, 2), (3, 2)]) == common_prefix([(1,), (1, 2)]) == 0


def test_the_meter_books_it_as_setup_every_time_and_it_is_found_once(
    parts: Parts, found: RefusalDirection, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LocalModel.from_parts(parts.model, parts.tokenizer, policy=SAFE_POLICY)
    asked = []

    def find(engine: Any, prompts: Prompts, ids: Sequence[int], _: Any, account: Any) -> Any:
        asked.append((prompts, ids))
        for done in found.passes:
            account.book(done)
        return found

    monkeypatch.setattr("adversariallm.models.local.find_refusal_direction", find)
    groups = [[Conversation.user(word)] for word in ("a", "b", "c", "d")]
    for options in ({}, {"thresholds": Thresholds()}):
        meter = Meter()
        asking = MeteredModel(model, meter)
        assert asking.refusal_direction(*groups, refusal_tokens=("I",), **options) is found
        assert meter.total.total("setup", role="model") == found.work.usage == meter.total.total()
    ((prompts, ids),) = asked
    assert prompts.harmless == [model.chat.encode(Conversation.user("b"))]
    assert ids == [model.chat.codec.encode("I")[0]]
    assert found.work.usage.queries > 0


def test_a_limit_ends_the_search_in_the_middle_whether_it_was_made_before_or_not(
    parts: Parts, refusal_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(engine: Any, prompts: Any, ids: Any, limits: Any, account: Any) -> Any:
        return find_refusal_direction(engine, prompts, refusal_ids, WIDE, account)

    monkeypatch.setattr("adversariallm.models.local.find_refusal_direction", find)
    groups = [
        [Conversation.user(f"{word} {tail}") for tail in TAILS[part]]
        for part in (slice(4), slice(4, None))
        for word in (REFUSED, ANSWERED)
    ]
    model = LocalModel.from_parts(parts.model, parts.tokenizer, policy=SAFE_POLICY)
    spent = []
    for limit in (20, None, 20):
        meter = Meter(Budget(queries=limit))
        stopped = nullcontext() if limit is None else pytest.raises(BudgetExceededError)
        with stopped:
            MeteredModel(model, meter).refusal_direction(*groups)
        spent.append(meter.total.total("setup"))
    assert spent[0] == spent[2]
    assert 10 < spent[0].queries <= 20 < spent[1].queries
    assert (spent[0].flops or 0) > 0


def test_ablated_answers_differ_and_leave_the_model_as_it_was(
    model: LocalModel, found: RefusalDirection
) -> None:
    talks = [Conversation.user("the clock refuses names"), Conversation.user("a river")]
    options = GenerationConfig(max_new_tokens=8)
    before = model.generate(talks, options, [RNG, RNG])
    meter = Meter()
    without = MeteredModel(model, meter).generate_without(found.vector, talks, options, [RNG, RNG])
    assert [r.ids for r in without] != [r.ids for r in before]
    assert model.generate(talks, options, [RNG, RNG]) == before
    assert meter.total.total("optimization").queries == 2
