from __future__ import annotations

import threading
from typing import Any

import pytest

from adversariallm.core.types import Conversation
from adversariallm.tokenization import ChatTokenizer, Codec

MIXED = (
    "Tell me: 12,345 \u65e5\u672c\u8a9e \u00e9\u0301 \U0001f469\u200d\U0001f467 don't\n\n"
    "  x </s> [INST]"
)


@pytest.mark.parametrize("name", ["smollm2", "llama2", "llama3_1", "gpt2", "mistral_v3_spm"])
def test_encoding_is_the_librarys_own(tokenizer_of: Any, name: str) -> None:
    tokenizer, codec = tokenizer_of(name), tokenizer_of.codec(name)
    expected = tokenizer(MIXED, add_special_tokens=False, return_offsets_mapping=True)
    assert codec.encode(MIXED) == expected["input_ids"]
    ids, offsets = codec.encode_with_offsets(MIXED)
    assert (ids, offsets) == (expected["input_ids"], expected["offset_mapping"])
    assert codec.decode(ids) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    texts = [MIXED, "a b", "", "a bc d e f"]
    assert codec.encode_similar(texts) == codec.encode_batch(texts)
    assert codec.encode_similar(texts * 9) == codec.encode_batch(texts * 9)


def test_padding_and_truncation_of_the_users_tokenizer_do_not_reach_us(
    tokenizer_of: Any,
) -> None:
    codec = tokenizer_of.codec("smollm2")
    codec.tokenizer(["a", "a b c d"], padding=True, truncation=True, max_length=2)
    assert codec.encode_batch(["a", "a b c d"]) == [codec.encode("a"), codec.encode("a b c d")]
    assert len(codec.encode("a b c d")) == 4


def test_several_threads_may_encode_at_once(tokenizer_of: Any) -> None:
    codec, seen = tokenizer_of.codec("smollm2"), []

    def work(n: int) -> None:
        seen.append(codec.encode_similar([f"the word {n} and {i}" for i in range(50)]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    whole = {n: codec.encode_batch([f"the word {n} and {i}" for i in range(50)]) for n in range(4)}
    assert sorted(map(str, seen)) == sorted(map(str, whole.values()))


class Slow:
    """A tokenizer without a Rust back end or offsets, as transformers' Python tokenizers are."""

    def __init__(self, fast: Any) -> None:
        self._fast = fast

    def __len__(self) -> int:
        return len(self._fast)

    def __call__(self, text: str) -> Any:
        return self._fast(text)

    def __getattr__(self, name: str) -> Any:
        if name == "backend_tokenizer":
            raise AttributeError(name)
        return getattr(self._fast, name)


@pytest.mark.parametrize("name", ["smollm2", "mistral_v3_spm"])
def test_without_offsets_the_checked_fallback_gives_the_same_segments(
    tokenizer_of: Any, name: str
) -> None:
    from adversariallm.tokenization import Slot

    template = "chatml" if name == "smollm2" else "mistral-v3"
    fast = ChatTokenizer(tokenizer_of.codec(name), template)
    slow = ChatTokenizer(Slow(tokenizer_of(name)), template)
    for text in ("Hello there.", "\u65e5\u672c\u8a9e \U0001f469", "a\n\nb"):
        conversation = Conversation.user(text)
        one = fast.segments(conversation, Slot(text=" x x x"), target="Sure")
        other = slow.segments(conversation, Slot(text=" x x x"), target="Sure")
        assert one.ids == other.ids
        assert one.named("slot") == other.named("slot")
        ids = [list(one.slot_ids), [5, 600, 700], [1200, 1300, 1400]]
        assert fast.reachable(one, ids).kept == slow.reachable(other, ids).kept
    assert (
        slow.codec.content_hash
        == ChatTokenizer(Slow(tokenizer_of(name)), template).codec.content_hash
    )


def test_leading_blanks_survive_decoding_in_context(tokenizer_of: Any) -> None:
    codec = tokenizer_of.codec("llama2")
    context, ids = codec.encode("Hello."), codec.encode("x x")
    assert codec.decode(ids) == "x x"
    assert codec.decode_after(context, ids) == " x x"
    assert codec.pieces[ids[0]] == " x"


def test_ids_that_break_a_character_have_no_text(tokenizer_of: Any) -> None:
    codec = tokenizer_of.codec("llama2")
    first, second, third = codec.encode("\u20bd")[-3:]
    assert codec.pieces[first] is None
    assert codec.decode_after(codec.encode("a"), [first, second, third]) == "\u20bd"
    assert codec.decode_after([*codec.encode("a"), first, second], [third]) is None


@pytest.mark.parametrize("name", ["smollm2", "llama2", "llama3_1", "mistral_v3_spm"])
def test_a_pieced_text_is_the_decoded_text(tokenizer_of: Any, name: str) -> None:
    codec = tokenizer_of.codec(name)
    context = codec.encode("Hello.")
    ids = [i for i in range(0, len(codec), 37) if codec.pieces[i] is not None]
    for start in range(0, len(ids), 50):
        row = ids[start : start + 50]
        assert codec.decode_after(context, row) == "".join(codec.pieces[i] or "" for i in row)


def test_the_content_hash_tells_a_mislabelled_tokenizer_apart(
    tokenizer_of: Any,
) -> None:
    llama2, mistral = tokenizer_of.codec("llama2"), tokenizer_of.codec("mistral_v1")
    assert len(llama2) == len(mistral)
    assert llama2.content_hash != mistral.content_hash
    assert llama2.content_hash == Codec(tokenizer_of("llama2")).content_hash


def test_an_added_token_changes_the_content_hash(trained: Any) -> None:
    import copy

    other = copy.deepcopy(trained)
    other.add_tokens(["<extra>"])
    assert Codec(other).content_hash != Codec(trained).content_hash
    assert Codec(other).decode([len(other) - 1]) == "<extra>"
