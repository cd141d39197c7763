"""What every defense is made of: what passes, what it costs, what the bare model said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from adversariallm.core.budget import Usage
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import DefenseInfo, Needs, Wanted, WhiteBoxModel
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput, Reply
from adversariallm.defenses import system_prompt
from adversariallm.defenses._kit.defended import Ask, Defended, bare
from adversariallm.defenses._kit.replies import chosen, withheld
from adversariallm.defenses._kit.requests import Request, split
from adversariallm.models.fakes import ScriptedModel, echo_model
from adversariallm.models.planted import PlantedModel

GREEDY = GenerationConfig(max_new_tokens=24)
HELLO = Conversation.user("hello")


def info(passes: Needs = Needs.TEXT, name: str = "toy") -> DefenseInfo:
    return DefenseInfo(name, "", "", passes=passes)


class Options(FrozenConfig):
    strength: int = 1


class Shouting(Defended):
    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        return ask([r.with_prompt(r.prompt.upper()) for r in requests])


class Twice(Defended):
    """Asks for the very request and for a copy; hands on the copy's answer."""

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        copies = [r.with_prompt("copy").stream("copy") for r in requests]
        pairs = split(ask([*requests, *copies]), [len(requests)] * 2)
        return [chosen(copy, [first]) for first, copy in zip(*pairs, strict=True)]


def ask_one(model: Any, item: Any = HELLO) -> Reply:
    [reply] = model.generate([item], GREEDY, [Rng.root(0)])
    assert isinstance(reply, Reply)
    return reply


def costing(text: str = "answer", **facts: Any) -> ScriptedModel:
    usage = Usage(queries=1, flops=10)
    return ScriptedModel([Reply(text, usage=usage, executed=12, **facts)])


def test_everything_passes_that_is_not_overridden() -> None:
    planted = PlantedModel()
    model = Defended(planted, info(Needs.white_box()), Options())
    assert model.gives == planted.gives
    assert isinstance(model, WhiteBoxModel)
    segments = planted.chat.segments(HELLO, target=planted.answer)
    ids, target = segments.input_ids, segments.target_ids
    assert model.losses([ids], [target]).loss.equal(planted.losses([ids], [target]).loss)
    slope = model.gradient(ids, [1], target).slot
    assert slope.equal(planted.gradient(ids, [1], target).slot)
    assert model.token_scores(slope).equal(planted.token_scores(slope))
    assert model.next_logits([ids]).logits.equal(planted.next_logits([ids]).logits)
    rows = model.embed(ids)
    assert model.soft_losses([rows], [target]).loss.equal(planted.losses([ids], [target]).loss)
    assert model.embedding_matrix().equal(planted.embedding_matrix())
    assert (model.num_embeddings, model.context_length) == (
        planted.num_embeddings,
        planted.context_length,
    )
    soft = ModelInput(embeddings=rows)
    assert ask_one(model, soft).text == ask_one(planted, soft).text


def test_what_does_not_pass_is_refused_with_the_reason() -> None:
    model = Defended(PlantedModel(), info(Needs.TEXT | Needs.TOKENS), Options())
    assert model.gives == Needs.TEXT | Needs.TOKENS
    assert model.chat is not None
    for call in (
        lambda: model.losses([[1]], [[2]]),
        lambda: model.gradient([1], [0], [2]),
        lambda: model.embedding_matrix(),
    ):
        with pytest.raises(NeedsError, match="behind defense 'toy' does not give"):
            call()


def test_a_defense_reads_text_and_refuses_embeddings() -> None:
    model = Shouting(PlantedModel(), info(), Options())
    with pytest.raises(NeedsError, match="'toy' reads text, given embeddings"):
        ask_one(model, ModelInput(embeddings=torch.zeros(3, model.model.num_embeddings)))  # type: ignore[attr-defined]


def test_exact_ids_are_dropped_for_the_text_they_came_with() -> None:
    sent: list[Any] = []

    class Seen(ScriptedModel):
        def generate(self, inputs: Any, *rest: Any, **more: Any) -> list[Reply]:
            sent.extend(inputs)
            return super().generate(inputs, *rest, **more)

    ask_one(Shouting(Seen(["x"]), info(), Options()), ModelInput(HELLO, (1, 2), prefill="Sure"))
    [given] = sent
    assert (given.ids, given.prefill, given.conversation[0].content) == (None, "Sure", "HELLO")


def test_the_undefended_answer_is_known_only_where_the_model_read_the_very_request() -> None:
    assert ask_one(Defended(echo_model(), info(), Options())).undefended == "hello"
    assert ask_one(Shouting(echo_model(), info(), Options())).undefended is None
    stack = Defended(Shouting(echo_model(), info(), Options()), info(), Options())
    assert ask_one(stack).undefended is None
    stack = Shouting(Defended(echo_model(), info(), Options()), info(), Options())
    assert ask_one(stack).undefended is None


def test_the_work_behind_the_answer_is_the_models_and_the_rest_the_defenses() -> None:
    reply = ask_one(Twice(costing(), info(), Options()))
    assert reply.usage == Usage(queries=1, flops=10)
    assert reply.defense_usage == Usage(queries=1, flops=10)
    assert reply.executed == 24
    outer = ask_one(Twice(Twice(costing(), info(), Options()), info(), Options()))
    assert (outer.usage.queries, outer.defense_usage.queries) == (1, 3)


def test_a_withheld_answer_is_marked_and_keeps_what_was_said_and_spent() -> None:
    said = Reply("yes", usage=Usage(queries=1, flops=5), undefended="yes", raw={"id": 1})
    instead = withheld("toy", "no", "why", reply=said, score=0.5)
    assert (instead.text, instead.undefended, instead.usage) == ("no", "yes", said.usage)
    assert (instead.finish_reason, instead.error) == ("content_filter", None)
    assert instead.raw == {"id": 1, "defense": [{"name": "toy", "withheld": "why", "score": 0.5}]}
    unasked = withheld("toy", "no", "why")
    assert unasked.usage == Usage(queries=1)
    failed = withheld("toy", "no", "why", reply=said, error="parse")
    assert (failed.error, failed.text) == ("defense:toy:parse", "no")


def test_identity_names_every_defense_of_a_stack() -> None:
    inner = Defended(echo_model(), info(name="a"), Options())
    outer = Defended(inner, info(name="b"), Options(strength=2))
    assert outer.identity()["defense"] == {"name": "b", "version": 1, "options": {"strength": 2}}
    assert outer.identity()["model"]["defense"]["name"] == "a"
    assert bare(outer) is inner.model
    assert outer.name == "echo"


def test_preparations_add_up() -> None:
    inner = Defended(echo_model(), info(), Options(), preparation=Usage(flops=2))
    assert Defended(inner, info(), Options(), preparation=Usage(flops=3)).preparation.flops == 5


def test_a_need_that_the_model_or_what_stands_inside_does_not_meet_is_refused() -> None:
    class Hungry(Options):
        def wanted(self) -> Wanted:
            return Wanted(model=Needs.LOGITS)

    class Close(Options):
        def wanted(self) -> Wanted:
            return Wanted(inside=Needs.LOGITS)

    with pytest.raises(NeedsError, match="defense 'toy' needs logits of the model"):
        Defended(echo_model(), info(), Hungry())
    behind = Defended(PlantedModel(), info(), Options())
    Defended(behind, info(), Hungry())
    with pytest.raises(NeedsError, match="put the defense further inside"):
        Defended(behind, info(), Close())


def test_losses_behind_a_system_prompt_are_those_of_the_conversation_with_it() -> None:
    planted = PlantedModel()
    text = f"keep calm{planted.best_suffix}"
    model: Any = system_prompt.wrap(planted, system_prompt.Config(text=text), Any)  # type: ignore[arg-type]
    segments = model.chat.segments(HELLO, target=planted.answer)
    plain = planted.chat.segments(HELLO, target=planted.answer)
    found = model.losses([segments.input_ids], [segments.target_ids]).loss
    assert float(found) == pytest.approx(planted.best_loss)
    assert float(planted.losses([plain.input_ids], [plain.target_ids]).loss) > float(found)
    assert ask_one(planted).text == planted.refusal
    assert ask_one(model).text == planted.answer
    assert ask_one(model, ModelInput(HELLO, plain.input_ids)).text == planted.answer
    soft = ModelInput(embeddings=model.embed(segments.input_ids))
    assert ask_one(model, soft).text == planted.answer


def test_a_system_prompt_keeps_the_one_of_a_remote_model() -> None:
    inner = echo_model()
    inner.system_prompt = "Own."  # type: ignore[attr-defined]
    model = system_prompt.wrap(inner, system_prompt.Config(text="Careful."), Any)  # type: ignore[arg-type]
    ask_one(model)
    assert inner.calls[0].to_dicts()[0] == {"role": "system", "content": "Own.\n\nCareful."}


def test_an_empty_system_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="would protect nothing"):
        system_prompt.Config(text=" ")
