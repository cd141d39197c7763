"""Remote models: what is sent, what comes back, what a failure becomes, and where keys never go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError, ModelError, NeedsError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.protocols import ChatModel, Needs
from adversariallm.core.rng import Rng
from adversariallm.core.types import Conversation, ModelInput
from adversariallm.models.identity import identity
from adversariallm.models.loading import load
from adversariallm.models.options import ModelOptions, resolve
from adversariallm.models.remote import RemoteModel
from adversariallm.models.replies import ReplyCache
from judgezoo.backends import Capabilities, EndpointBackend, EndpointConfig
from judgezoo.backends.base import ChatChoice, ChatReply, ChatRequest, Usage
from judgezoo.backends.wire import CallFailed

RNG = Rng.root(0)
GREEDY = GenerationConfig(max_new_tokens=9)
ASK = Conversation.user("a")
GOOD = ChatReply(choices=(ChatChoice(text="b"),))


class Driver:
    """Answers with what it was given and keeps what was sent."""

    def __init__(self, *outcomes: ChatReply | CallFailed) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[ChatRequest] = []

    def call(self, request: ChatRequest, timeout_s: float) -> ChatReply:
        self.sent.append(request)
        outcome = (
            self.outcomes.pop(0) if self.outcomes else ChatReply(choices=(ChatChoice(text="b"),))
        )
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome


def remote(driver: Driver, **options: Any) -> RemoteModel:
    system = options.pop("system_prompt", None)
    config = EndpointConfig(
        model="m", base_url="http://127.0.0.1:1/v1", max_concurrency=1, **options
    )
    return RemoteModel(EndpointBackend(config, driver=driver), name="m", system_prompt=system)


def test_it_keeps_the_chat_protocol() -> None:
    model = remote(Driver())
    assert isinstance(model, ChatModel)
    assert model.gives == Needs.TEXT


def test_options_reach_the_request() -> None:
    driver = Driver()
    options = GenerationConfig(
        temperature=0.7, top_p=0.9, max_new_tokens=5, stop=("x",), num_return_sequences=4
    )
    schema = {"type": "object"}
    given = ModelInput(conversation=ASK)
    remote(driver, system_prompt="Be brief.").generate([given], options, [RNG], json_schema=schema)
    (request,) = driver.sent
    assert [m["role"] for m in request.messages] == ["system", "user"]
    assert (request.temperature, request.top_p, request.max_tokens) == (0.7, 0.9, 5)
    assert (request.stop, request.n, request.schema) == (("x",), 1, schema)


def test_the_seed_belongs_to_the_stream_and_is_sent_only_for_sampling() -> None:
    driver = Driver()
    sampled = GenerationConfig(temperature=1.0)
    model = remote(driver)
    for options, rng in ((sampled, RNG.child(1)), (sampled, RNG.child(1)), (sampled, RNG.child(2))):
        model.generate([ASK], options, [rng])
    model.generate([ASK], GREEDY, [RNG])
    seeds = [r.seed for r in driver.sent]
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[3] is None
    assert 0 <= int(seeds[0] or 0) < 2**31


def test_usage_and_cost_are_reported() -> None:
    answer = ChatReply(
        choices=(ChatChoice(text="b", finish_reason="length"),),
        usage=Usage(input_tokens=100, output_tokens=10),
        served_model="m-2026",
    )
    model = remote(Driver(answer), input_price=2.0, output_price=10.0)
    (reply,) = model.generate([ASK], GREEDY, [RNG])
    assert (reply.text, reply.finish_reason, reply.error) == ("b", "length", None)
    assert (reply.usage.queries, reply.usage.tokens) == (1, 110)
    assert reply.usage.cost == pytest.approx(100 * 2e-6 + 10 * 10e-6)
    assert reply.raw["served_model"] == "m-2026"
    assert model.observed() == {"served": ["m-2026"]}


def test_flops_are_unknown_unless_the_user_states_the_parameters(tmp_path: Path) -> None:
    answer = ChatReply(
        choices=(ChatChoice(text="b"),), usage=Usage(input_tokens=100, output_tokens=10)
    )
    model = remote(Driver(answer, answer))
    model.replies = ReplyCache(tmp_path)
    (reply,) = model.generate([ASK], GREEDY, [RNG])
    assert (reply.usage.flops, reply.usage.flops_2n) == (None, None)
    model.active_params = 7e9  # the same answer, from the cache
    (reply,) = model.generate([ASK], GREEDY, [RNG])
    assert reply.usage.flops == reply.usage.flops_2n == 2 * 7_000_000_000 * 110
    assert reply.raw["flops_basis"] == "active_params"


IDS = ModelInput(conversation=ASK, ids=(5, 6, 7))


def read(tokens: int) -> ChatReply:
    return ChatReply(
        choices=(ChatChoice(text=" on"),), usage=Usage(input_tokens=tokens, output_tokens=1)
    )


def test_token_ids_are_sent_as_they_are_and_the_server_must_have_read_as_many() -> None:
    driver = Driver(read(3), read(4), read(0))
    able = Capabilities(token_ids="completions")
    model = remote(driver, capabilities=able, system_prompt="Be brief.")
    good, changed, silent = model.generate([IDS] * 3, GREEDY, [RNG] * 3)
    assert [r.prompt_ids for r in driver.sent] == [(5, 6, 7)] * 3
    assert (good.text, good.error) == (" on", None)
    assert good.raw["engine"] == "completions of token ids"
    assert (changed.text, changed.error) == ("", "ids_not_taken")
    assert "3 token ids were sent and the server read 4" in str(changed.raw["error"])
    assert silent.error == "ids_not_taken"


def test_token_ids_are_refused_where_the_server_is_not_said_to_take_them() -> None:
    driver = Driver()
    with pytest.raises(ConfigError, match="token_ids=completions"):
        remote(driver).generate([IDS], GREEDY, [RNG])
    assert driver.sent == []


def test_stated_capabilities_stand_over_the_usual_ones_of_the_provider() -> None:
    def stated(name: str, **told: Any) -> Any:
        options = ModelOptions(capabilities=told)
        facts: Any = identity(resolve(name, options), options)
        return facts["endpoint"]["capabilities"]

    assert stated("openai:m@http://127.0.0.1:1/v1", n=False)["temperature"] is True
    found = stated("anthropic:m", prefill="assistant_turn")
    assert (found["prefill"], found["temperature"]) == ("assistant_turn", False)
    with pytest.raises(ConfigError, match="tokens"):
        stated("openai:m@http://127.0.0.1:1/v1", tokens=True)


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        ("context_overflow", "context", "context_length"),
        ("content_filter", "content_filter", "content_filter"),
        ("provider_error", "error", "provider_error"),
    ],
)
def test_a_failure_is_an_error_reply_and_leaves_its_neighbors_alone(
    status: str, reason: str, code: str
) -> None:
    failed = CallFailed("no", status=status)
    model = remote(Driver(GOOD, failed))
    good, bad = model.generate([ASK, ASK], GREEDY, [RNG, RNG])
    assert (good.text, good.error) == ("b", None)
    assert (bad.text, bad.finish_reason, bad.error) == ("", reason, code)


def test_a_refusal_beside_the_content_is_the_answer() -> None:
    refused = ChatReply(choices=(ChatChoice(text="", finish_reason="refusal", refusal="No."),))
    (reply,) = remote(Driver(refused)).generate([ASK], GREEDY, [RNG])
    assert (reply.text, reply.error, reply.raw["refusal"]) == ("No.", None, "No.")


def test_what_the_endpoint_does_not_honor_is_an_error_before_anything_is_sent() -> None:
    driver = Driver()
    model = remote(driver, capabilities=Capabilities(prefill="none"))
    with pytest.raises(ConfigError, match="does not honor prefill"):
        model.generate([ModelInput(conversation=ASK, prefill="Sure")], GREEDY, [RNG])
    with pytest.raises(ConfigError, match=r"cannot honor generation_config\.min_p"):
        model.generate([ASK], GenerationConfig(temperature=1, min_p=0.1), [RNG])
    assert driver.sent == []


def test_embeddings_are_refused() -> None:
    import torch

    with pytest.raises(NeedsError, match="local model"):
        remote(Driver()).generate([ModelInput(embeddings=torch.zeros(1, 2))], GREEDY, [RNG])


def test_a_paid_reply_is_never_paid_for_again(tmp_path: Path) -> None:
    failed = CallFailed("no", status="provider_error")
    paid = ChatReply(choices=(ChatChoice(text="c"),), usage=Usage(input_tokens=7))
    driver = Driver(GOOD, failed, paid)
    model = remote(driver)
    model.replies = ReplyCache(tmp_path)
    streams = [RNG.child(n) for n in range(3)]
    first = model.generate([ASK] * 3, GREEDY, streams)
    assert [r.error for r in first] == [None, "provider_error", None]
    again = model.generate([ASK] * 3, GREEDY, streams)
    assert len(driver.sent) == 4  # only the failed one is sent once more
    assert (again[0], again[2]) == (first[0], first[2])
    assert again[2].usage.tokens_processed == 7
    for path in tmp_path.rglob("*.json"):
        path.write_text("damaged", encoding="utf-8")
    model.generate([ASK], GREEDY, streams[:1])
    assert len(driver.sent) == 5


def test_another_option_or_sample_is_another_request(tmp_path: Path) -> None:
    driver = Driver()
    model = remote(driver)
    model.replies = ReplyCache(tmp_path)
    model.generate([ASK], GREEDY, [RNG])
    model.generate([ASK], GREEDY, [RNG.child(1)])
    model.generate([ASK], GenerationConfig(max_new_tokens=8), [RNG])
    model.generate([ASK], GREEDY, [RNG], json_schema={"type": "object"})
    assert len(driver.sent) == 4


def test_a_name_with_a_provider_is_an_endpoint() -> None:
    card = resolve("openai:some-model@http://127.0.0.1:9/v1")
    assert card.gives == Needs.TEXT
    model = load(card, ModelOptions(rpm=60))
    assert isinstance(model, RemoteModel)
    assert dict(model.identity()) == identity(card, ModelOptions())
    with pytest.raises(ConfigError, match="expected openai:MODEL"):
        resolve("openai:")
    with pytest.raises(ConfigError, match="base_url"):
        load(resolve("openai:m@ftp://x"))


def test_a_missing_key_is_a_clear_error_and_a_key_never_appears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    card = resolve("openai:some-model")
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        load(card)
    secret = "not-a-real-key-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    model = load(card)
    assert secret not in repr(model.identity()) + repr(vars(model))


def test_limits_and_prices_stay_out_of_the_identity() -> None:
    card = resolve("openai:m@http://127.0.0.1:9/v1")
    plain = identity(card, ModelOptions())
    assert identity(card, ModelOptions(rpm=1, input_price=1, api_key_env="X")) == plain
    assert identity(card, ModelOptions(reasoning_allowance=10)) != plain
    assert identity(card, ModelOptions(system_prompt="x")) != plain
