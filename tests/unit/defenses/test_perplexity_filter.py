"""The measure against a plain forward pass, the threshold, and what an adaptive attacker sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from adversariallm.core.budget import Usage
from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import Supplies
from adversariallm.core.rng import Rng
from adversariallm.core.types import Behavior, Conversation, Message, Reply
from adversariallm.defenses import self_reminder, system_prompt
from adversariallm.defenses._kit.perplexity import Perplexity, calibrated, worst
from adversariallm.defenses._kit.surrogate import PromptFinder, TokenScores
from adversariallm.defenses.perplexity_filter import Config, wrap
from adversariallm.models.fakes import echo_model
from adversariallm.models.local import LocalModel
from adversariallm.models.tiny import tiny_model
from adversariallm.tokenization import Slot

GREEDY = GenerationConfig(max_new_tokens=4)
PLAIN = "the garden can explain a short story."
NOISE = "}{ zq% #! ~vv"
TEXTS = [PLAIN, NOISE, "a river", "", "my neighbor wants to help with good music."]


@pytest.fixture(scope="module")
def tiny() -> LocalModel:
    return tiny_model("llama", tied=True)


def benign(*texts: str) -> tuple[Behavior, ...]:
    return tuple(
        Behavior(f"b{i}", Conversation.user(text), text, harmful=False)
        for i, text in enumerate(texts)
    )


def filtered(model: Any, *texts: str, **options: Any) -> Any:
    return wrap(model, Config(**options), Supplies(datasets={"starter_benign": benign(*texts)}))


def ask(model: Any, *prompts: str) -> list[Reply]:
    talks = [Conversation.user(p) for p in prompts]
    rngs = [Rng.root(0).child(p) for p in prompts]
    replies: list[Reply] = model.generate(talks, GREEDY, rngs)
    return replies


def plain_nll(model: LocalModel, text: str) -> torch.Tensor:
    ids = [model.chat.tokenizer.bos_token_id, *model.chat.codec.encode(text)]
    logits = model.engine.forward.model(torch.tensor([ids])).logits[0, :-1].float()
    return F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")


def test_the_measure_is_that_of_a_plain_forward_pass(tiny: LocalModel) -> None:
    found = Perplexity(tiny)(TEXTS)
    assert found[3].value == 0.0
    assert found[3].usage == Usage()
    for text, row in zip(TEXTS, found, strict=True):
        if text:
            assert row.value == pytest.approx(float(plain_nll(tiny, text).mean()), abs=1e-4)
            assert row.usage.queries == 1


def test_a_row_depends_on_its_text_alone(tiny: LocalModel) -> None:
    measure = Perplexity(tiny, window=3)
    assert [measure([text])[0] for text in TEXTS] == measure(TEXTS)


def test_windows_follow_each_other_and_the_last_ends_with_the_text() -> None:
    nll = torch.tensor([1.0, 1, 1, 5, 5, 0, 0, 9])
    assert float(worst(nll, None)) == pytest.approx(22 / 8)
    assert float(worst(nll, 8)) == float(worst(nll, 100)) == pytest.approx(22 / 8)
    assert float(worst(nll, 3)) == pytest.approx(10 / 3)  # 111, 550, 009
    assert float(worst(nll, 4)) == pytest.approx(14 / 4)
    assert float(worst(nll, 1)) == 9


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.2, 0.3, 0.45])
def test_the_threshold_stops_no_more_than_its_share_and_no_value_below_does(rate: float) -> None:
    values = [Rng.root(0).uniform(i) for i in range(40)]
    threshold = calibrated(values, rate)
    assert sum(v > threshold for v in values) <= rate * len(values)
    lower = max(v for v in values if v < threshold)
    assert sum(v > lower for v in values) > rate * len(values)


def test_what_is_above_the_threshold_is_withheld_and_the_model_is_not_asked(
    tiny: LocalModel,
) -> None:
    values = {t: m.value for t, m in zip(TEXTS, Perplexity(tiny)(TEXTS), strict=True)}
    kept, stopped = sorted([PLAIN, NOISE], key=lambda t: values[t] or 0)
    model = filtered(tiny, kept, false_positive_rate=0)
    assert model.threshold == values[kept]
    assert model.preparation.queries == 1
    good, bad = ask(model, kept, stopped)
    assert good.text == good.undefended == ask(tiny, kept)[0].text
    assert bad.finish_reason == "content_filter"
    assert bad.usage == Usage(queries=1)
    assert bad.undefended is None
    [mark] = bad.raw["defense"]
    assert mark["withheld"] == "perplexity"
    assert (mark["log_perplexity"], mark["threshold"]) == (values[stopped], values[kept])
    assert good.defense_usage == Perplexity(tiny)([kept])[0].usage
    assert ask(model, stopped, kept) == [bad, good]


def test_every_user_message_is_measured_and_the_highest_counts(tiny: LocalModel) -> None:
    low, high = sorted([PLAIN, NOISE], key=lambda t: Perplexity(tiny)([t])[0].value or 0)
    model = filtered(tiny, low, false_positive_rate=0)
    talk = Conversation((Message("user", high), Message("assistant", "a"), Message("user", low)))
    [reply] = model.generate([talk], GREEDY, [Rng.root(0)])
    assert reply.finish_reason == "content_filter"


def test_a_message_that_the_scorer_cannot_hold_is_withheld_and_not_scored(
    tiny: LocalModel,
) -> None:
    model = filtered(tiny, threshold=1000.0)
    [reply] = ask(model, PLAIN * 400)
    assert reply.error == "defense:perplexity_filter:context_length"


def test_an_own_small_model_measures_instead(tiny: LocalModel) -> None:
    supplies = Supplies(helpers={"defense": tiny})
    model: Any = wrap(echo_model(), Config(threshold=0.001, scorer="helper"), supplies)
    assert [r.finish_reason for r in ask(model, PLAIN, "")] == ["content_filter", "stop"]
    with pytest.raises(NeedsError, match="'perplexity_filter' needs tokens, logits of the model"):
        filtered(echo_model(), PLAIN)


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0}, {"false_positive_rate": 0.5}, {"window": 0}, {"penalty": -1}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Input should be"):
        Config(**wrong)


def test_harmful_prompts_calibrate_nothing(tiny: LocalModel) -> None:
    rows = (Behavior("h", Conversation.user("x"), "x", harmful=True),)
    with pytest.raises(ConfigError, match="holds harmful prompts"):
        wrap(tiny, Config(), Supplies(datasets={"starter_benign": rows}))


# Adaptive attackers


def test_the_loss_grows_by_what_exceeds_the_threshold(tiny: LocalModel) -> None:
    model = filtered(tiny, threshold=0.5, penalty=3.0)
    texts = [PLAIN, NOISE, "a river"]
    pairs = [tiny.chat.segments(Conversation.user(t), target="Sure") for t in texts]
    inputs, targets = [s.input_ids for s in pairs], [s.target_ids for s in pairs]
    found, plain = model.losses(inputs, targets), tiny.losses(inputs, targets)
    values = [m.value for m in Perplexity(tiny)(texts)]
    for k, value in enumerate(values):
        excess = 3 * max(0.0, (value or 0) - 0.5)
        assert float(found.loss[k] - plain.loss[k]) == pytest.approx(excess, abs=1e-4)
    assert found.work.usage.queries == 6
    free = filtered(tiny, threshold=1000.0).losses(inputs, targets)
    assert free.loss.equal(plain.loss)


@pytest.mark.parametrize("inner", ["bare", "system_prompt", "self_reminder"])
def test_the_prompt_is_found_in_ids(tiny: LocalModel, inner: str) -> None:
    wrapped: Any = {
        "bare": tiny,
        "system_prompt": system_prompt.wrap(tiny, system_prompt.Config(), Supplies()),
        "self_reminder": self_reminder.wrap(tiny, self_reminder.Config(), Supplies()),
    }[inner]
    find = PromptFinder(wrapped.chat)
    talks = [
        Conversation.user("the old clock  {x"),
        Conversation.user("a cat", system="be kind"),
        Conversation((Message("user", "u"), Message("assistant", "a"), Message("user", "last"))),
    ]
    for talk in talks:
        for prefill in ("", "Sure"):
            ids = wrapped.chat.encode(talk, prefill=prefill)
            assert find(ids) == talk[talk.last_user].content
    with pytest.raises(NeedsError, match="must end its input with a user message"):
        find((7, 8, 9))


def test_scores_linear_in_the_embedding_come_back_exactly() -> None:
    rng = Rng.root(0).torch()
    embedding = torch.randn(50, 6, generator=rng)
    wanted = torch.randn(3, 6, generator=rng)
    scores = wanted @ embedding.T + torch.randn(3, 1, generator=rng)
    assert torch.allclose(TokenScores(embedding).direction(scores), wanted, atol=1e-4)


def test_the_gradient_says_how_unlikely_each_token_is(tiny: LocalModel) -> None:
    model = filtered(tiny, threshold=0.5, penalty=2.0)
    segments = tiny.chat.segments(Conversation.user(PLAIN), Slot(text=" good music"), target="Sure")
    ids, slot, target = segments.input_ids, segments.slot_positions, segments.target_ids
    found, plain = model.gradient(ids, slot, target), tiny.gradient(ids, slot, target)
    added = tiny.token_scores(found.slot - plain.slot)
    before = tiny.next_logits([ids[:at] for at in slot]).logits.log_softmax(-1)
    text = segments.conversation[0].content
    wanted = -before * 2.0 / len(tiny.chat.codec.encode(text))
    difference = (added - added.mean(1, keepdim=True)) - (wanted - wanted.mean(1, keepdim=True))
    assert float(difference.abs().max()) < 1e-3 * float(wanted.std())
    assert found.work.usage.queries == plain.work.usage.queries + 1
    assert found.loss == plain.loss
