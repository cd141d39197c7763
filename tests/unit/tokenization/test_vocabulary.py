from __future__ import annotations

from typing import Any

import pytest
import torch

from adversariallm.tokenization import ChatTokenizer, vocabulary_mask

LARGE = [pytest.param(n, marks=pytest.mark.slow) for n in ("llama3_1", "qwen3", "gptoss", "gemma3")]


@pytest.mark.parametrize("name", ["smollm2", "llama2", "mistral_v3_spm", *LARGE])
def test_the_default_mask_holds_plain_printable_ascii_only(tokenizer_of: Any, name: str) -> None:
    tokenizer = tokenizer_of(name)
    mask = vocabulary_mask(tokenizer)
    assert mask.dtype == torch.bool and mask.shape == (len(tokenizer),)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    assert not mask[sorted(special)].any()
    texts = tokenizer.batch_decode(
        [[i] for i in range(len(tokenizer))], clean_up_tokenization_spaces=False
    )
    for i, text in enumerate(texts):
        if mask[i]:
            assert text.isascii() and text.isprintable() and "\ufffd" not in text, (i, text)
        elif i not in special and text.strip() and text.isascii() and text.isprintable():
            assert tokenizer.convert_ids_to_tokens(i).startswith("<0x"), (i, text)


def test_rows_beyond_the_tokenizer_and_beyond_the_matrix_are_never_used(
    tokenizer_of: Any,
) -> None:
    tokenizer = tokenizer_of.codec("smollm2")
    base = vocabulary_mask(tokenizer)
    assert vocabulary_mask(tokenizer, 50_000)[: len(base)].equal(base)
    assert not vocabulary_mask(tokenizer, 50_000)[len(base) :].any()
    assert vocabulary_mask(tokenizer, 1000).equal(base[:1000])


def test_wider_masks_add_what_they_say(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("qwen3"))
    narrow, wide = chat.mask(), chat.mask(ascii_only=False)
    special = chat.mask(allow_special=True)
    assert (wide | narrow).equal(wide) and (special | narrow).equal(special)
    newline, marker = chat.codec.encode("\n")[0], chat.codec.encode("<|im_end|>")[0]
    assert not narrow[newline] and wide[newline]
    assert not wide[marker] and special[marker]
    fragments = [i for i, p in enumerate(chat.codec.pieces) if p is None]
    assert fragments and not wide[fragments].any()


def test_a_mask_is_computed_once_for_equal_tokenizers(tokenizer_of: Any) -> None:
    from adversariallm.tokenization.vocabulary import _allowed

    tokenizer = tokenizer_of("smollm2")
    vocabulary_mask(tokenizer)
    before = _allowed.cache_info().misses
    vocabulary_mask(tokenizer, 60_000)
    ChatTokenizer(tokenizer).mask()
    assert _allowed.cache_info().misses == before


def test_masks_are_not_shared_so_changing_one_is_safe(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("smollm2"))
    chat.mask().zero_()
    assert chat.mask().any()


def test_ids_that_decode_to_another_id_are_never_used(tokenizer_of: Any) -> None:
    chat = ChatTokenizer(tokenizer_of.codec("llama2"), "llama-2")
    letter, byte = chat.codec.encode("xA")[-1], 3 + ord("A")
    assert chat.codec.pieces[byte] == chat.codec.pieces[letter] == "A"
    assert chat.mask()[letter] and not chat.mask()[byte]
