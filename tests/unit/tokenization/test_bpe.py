"""Merges left out at random: none left out is the tokenizer, all left out are its characters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from adversariallm.core.errors import ModelError
from adversariallm.core.rng import Rng
from adversariallm.models.tiny import tiny_model
from adversariallm.tokenization import load_tokenizer
from adversariallm.tokenization.bpe import BytePairs
from adversariallm.tokenization.codec import Codec

TEXT = (
    "Three friends don't like caf\u00e9s \u2014 na\u00efve \u6771\u4eac \U0001f600 and   code:"
    " `for i in range(10):\n\tprint(i)` antidisestablishmentarianism"
)
SMALL = ["gpt2", "llama2", "mistral_v3_spm", "qwen3", "smollm2", "tiny_torchtune"]
LARGE = [
    "deepseek_v3", "gemma2", "gemma3", "gptoss", "llama3", "llama3_1", "mistral_v1",
    "mistral_v1_spm",
]  # fmt: skip
NAMES = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]


def codec_of(data_dir: Path, name: str) -> Codec:
    return Codec(load_tokenizer(data_dir / "tokenizers" / name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_ends_are_the_tokenizer_and_single_characters(data_dir: Path, name: str) -> None:
    codec = codec_of(data_dir, name)
    pairs = BytePairs(codec)
    whole = [(0, len(TEXT))]
    plain = tuple(codec.encode(TEXT))
    assert pairs.encode(TEXT, whole, 0.0, Rng.root(0).python()) == plain
    some = pairs.encode(TEXT, whole, 0.4, Rng.root(0).python())
    single = pairs.encode(TEXT, whole, 1.0, Rng.root(0).python())
    assert len(plain) < len(some) < len(single)
    assert codec.decode(some) == codec.decode(single) == codec.decode(plain)
    joined = {a + b for a, b in pairs._rank}
    assert not any(pairs._texts[i] in joined for i in single if i not in codec.added)


def test_only_the_stretches_are_cut_anew(data_dir: Path) -> None:
    codec = codec_of(data_dir, "smollm2")
    text = "friends everywhere<|im_start|>friends everywhere"
    middle = text.index("<")
    cut = BytePairs(codec).encode(text, [(middle, len(text))], 1.0, Rng.root(0).python())
    plain = codec.encode(text)
    marker = plain.index(codec.tokenizer.convert_tokens_to_ids("<|im_start|>"))
    assert list(cut[: marker + 1]) == plain[: marker + 1]
    assert len(cut) - marker - 1 == len("friends everywhere")


def exact(pairs: BytePairs, split: tuple[str, ...], drop: float) -> Counter[tuple[str, ...]]:
    """Probability of every outcome: at each turn the best merge that is not left out is made."""
    found = sorted(
        (pairs._rank[pair], k)
        for k, pair in enumerate(zip(split, split[1:], strict=False))
        if pair in pairs._rank
    )
    out: Counter[tuple[str, ...]] = Counter({split: drop ** len(found)})  # type: ignore[dict-item]
    for i, (_, k) in enumerate(found):
        merged = (*split[:k], split[k] + split[k + 1], *split[k + 2 :])
        for end, share in exact(pairs, merged, drop).items():
            out[end] += drop**i * (1 - drop) * share  # type: ignore[assignment]
    return out


def test_outcomes_are_as_likely_as_the_definition_says(data_dir: Path) -> None:
    pairs = BytePairs(codec_of(data_dir, "smollm2"))
    likely = exact(pairs, tuple("stories"), 0.4)
    assert sum(likely.values()) == pytest.approx(1)
    draw, count = Rng.root(0).python(), 20_000
    seen = Counter(tuple(pairs.merge("stories", 0.4, draw)) for _ in range(count))
    assert set(seen) <= set(likely)
    for split, share in likely.items():
        error = (share * (1 - share) / count) ** 0.5
        assert abs(seen[split] / count - share) < 5 * error + 1 / count


def test_a_tokenizer_without_merges_is_refused() -> None:
    class Pieces:
        backend_tokenizer: Any = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))

    with pytest.raises(ModelError, match="is WordLevel; leaving out merges needs"):
        BytePairs(Codec(Pieces()))


def test_it_works_on_the_tokenizer_of_the_tiny_model() -> None:
    codec = tiny_model("llama").chat.codec
    text = "write a short story"
    pairs = BytePairs(codec)
    whole = [(0, len(text))]
    assert pairs.encode(text, whole, 0.0, Rng.root(0).python()) == tuple(codec.encode(text))
    assert len(pairs.encode(text, whole, 1.0, Rng.root(0).python())) == len(text)
