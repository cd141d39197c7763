"""Constraints: what a random model writes under a schema is valid JSON of that schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from adversariallm.core.errors import ModelError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference import Engine, JsonSchema, Request, guarded
from adversariallm.inference.constrained import Guarded, RepetitionGuard

from .conftest import build, random_ids

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 10},
                   "harmful": {"type": "boolean"}},
    "required": ["score", "harmful"],
    "additionalProperties": False,
}  # fmt: skip


def byte_tokenizer() -> Any:
    """One id for every byte, and an end marker."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(build("llama", vocab_size=300))


def test_random_models_write_valid_json_beside_free_rows(engine: Engine) -> None:
    tokenizer = byte_tokenizer()
    maker = JsonSchema(tokenizer, engine.num_embeddings, SCHEMA)
    options = GenerationConfig(max_new_tokens=60, temperature=1.5)
    prompts = random_ids([5, 20, 9])
    stop = frozenset({tokenizer.eos_token_id})

    def ask(i: int, constraint: Any) -> Request:
        return Request(prompts[i], generation=options, rng=Rng.root(i), stop_ids=stop,
                       constraint=constraint)  # fmt: skip

    rows = engine.generate([ask(0, maker), ask(1, None), ask(2, guarded(300, maker))])
    for row in (rows[0], rows[2]):
        text = tokenizer.decode([t for t in row.ids if t not in stop])
        jsonschema.validate(json.loads(text), SCHEMA)
        assert row.finish_reason == "stop"
    assert rows[1].ids == engine.generate([ask(1, None)])[0].ids


def test_a_schema_that_cannot_be_compiled_is_an_error() -> None:
    with pytest.raises(ModelError, match="schema cannot be compiled"):
        JsonSchema(byte_tokenizer(), 300, {"type": "no such type"})


def test_the_guard_forbids_the_next_id_of_a_loop() -> None:
    guard = RepetitionGuard(times=3)
    for token in (5, 1, 2, 1, 2, 1):
        guard.accept(token)
    assert guard.forbidden() == set()
    guard.accept(2)
    assert guard.forbidden() == {1}
    guard.accept(9)
    assert guard.forbidden() == set()


def test_a_guarded_model_leaves_its_loop(engine: Engine) -> None:
    allowed = torch.zeros(300, dtype=torch.bool)
    allowed[[7, 8, 9]] = True
    options = GenerationConfig(max_new_tokens=40)
    prompt = random_ids([6])[0]
    request = Request(prompt, generation=options, allowed=allowed,
                      constraint=guarded(300, times=4))  # fmt: skip
    ids = engine.generate([request])[0].ids
    text = "".join(chr(97 + t) for t in ids)
    loops = [text[i : i + p] for p in range(1, 9) for i in range(len(text) - 5 * p + 1)
             if text[i : i + 5 * p] == text[i : i + p] * 5]  # fmt: skip
    assert loops == []


def test_the_guard_gives_way_where_it_would_leave_nothing() -> None:
    class Only:
        finished = False

        def mask(self) -> torch.Tensor:
            return torch.arange(4) == 2

        def accept(self, token: int) -> None:
            pass

    both = Guarded(Only(), RepetitionGuard(times=2).sized(4))
    for _ in range(3):
        both.accept(2)
    assert both.mask().tolist() == [False, False, True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["\u041f\u0442\u0438\u0446\u044b", "\u9ce5", "\u00e9t\u00e9 \u0663"]
)
def test_a_schema_lets_every_script_through(text: str) -> None:
    tokenizer = byte_tokenizer()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    constraint = JsonSchema(tokenizer, 300, schema)()
    written = json.dumps({"a": text}, ensure_ascii=False, separators=(",", ":"))
    for token in tokenizer.encode(written):
        assert constraint.mask()[token]
        constraint.accept(token)
