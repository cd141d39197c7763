"""Tokenizers for the tests here: public ones, and tiny ones trained on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adversariallm.tokenization import Codec, load_tokenizer

TEXT = [
    "the cat sat on the mat and the dog sat on the log",
    "a man and a dog ran to the sea, then on to the sun.",
    "Tell me a story! Why not? It is 12:45 already; don't wait.",
    "user: hello there\nassistant: hello to you\n\nuser: bye",
]


class Tokenizers:
    """Public tokenizers by folder name, each loaded once per session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, Codec] = {}

    def __call__(self, name: str) -> Any:
        """The transformers tokenizer."""
        return self.codec(name).tokenizer

    def codec(self, name: str) -> Codec:
        """The codec around it, which keeps what it has learned."""
        if name not in self._loaded:
            self._loaded[name] = Codec(load_tokenizer(self._folder / name))
        return self._loaded[name]


@pytest.fixture(scope="session")
def tokenizer_of(data_dir: Path) -> Tokenizers:
    """Load a public tokenizer by folder name."""
    return Tokenizers(data_dir / "tokenizers")


def _train(kind: str, size: int = 400, texts: list[str] = TEXT, longest: int = 16) -> Any:
    """A tokenizer of a kind, trained on a few sentences, with a turn marker of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "<|turn|>"]
    if kind == "byte":
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            max_token_length=longest,
            show_progress=False,
        )
    elif kind == "metaspace":
        t = Tokenizer(models.BPE(unk_token="<unk>"))
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        t.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=special,
            max_token_length=longest,
            show_progress=False,
        )
    else:
        t = Tokenizer(models.Unigram())
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        t.decoder = decoders.Metaspace(prepend_scheme="first")
        trainer = trainers.UnigramTrainer(
            vocab_size=size,
            special_tokens=special,
            unk_token="<unk>",
            max_piece_length=longest,
            show_progress=False,
        )
    t.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="session")
def train() -> Callable[..., Any]:
    """Train a tokenizer: `byte`, `metaspace` or `unigram`, size, texts, longest token."""
    return _train


@pytest.fixture(scope="session", params=["byte", "metaspace", "unigram"])
def trained(request: pytest.FixtureRequest) -> Any:
    """A small tokenizer of each kind."""
    return _train(request.param, 120 if request.param != "byte" else 320)
