"""Finding label tokens and reading probabilities at an answer word, for any vocabulary.

It looks tokens up by their text, never by a fixed id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from judgezoo.errors import InvalidOption
from judgezoo.tokens import plain_ids

__all__ = ["answer_probabilities", "label_ids"]


def label_ids(tokenizer: Any, words: Sequence[str], *, spaced: bool = True) -> list[int]:
    """Return the ids of words that are single tokens, with and without a leading space.

    Args:
        tokenizer: a transformers tokenizer.
        words: as the model writes them.
        spaced: also take the forms with a leading space.

    Raises:
        InvalidOption: none of the words is a token of this vocabulary.
    """
    vocabulary = tokenizer.get_vocab()
    marks = ("", "\u2581", "\u0120") if spaced else ("",)
    ids = [vocabulary[m + w] for w in words for m in marks if m + w in vocabulary]
    if not ids:
        raise InvalidOption(f"the tokenizer has none of the label tokens {', '.join(words)}")
    return ids


def answer_probabilities(
    model: Any, ids: list[int], answer: list[int], start: int, words: Sequence[Sequence[str]]
) -> list[float]:
    """Return how the probability at an answer word is split between groups of words.

    Args:
        model: a token backend.
        ids: the prompt.
        answer: the generated ids.
        start: character at which the answer word stands in the decoded answer.
        words: one group of alternative words per entry; the token that begins each counts.

    Returns:
        One share per group, together 1.
    """
    tokenizer = model.tokenizer
    count = _tokens_before(tokenizer, answer, start)
    before = tokenizer.decode(answer[:count], skip_special_tokens=True)
    after = tokenizer.decode(answer[: count + 1], skip_special_tokens=True)
    spaced = after[len(before) :][:1].isspace()
    groups = [[_first_token(tokenizer, word, spaced) for word in group] for group in words]
    labels = [token for group in groups for token in group]
    values = iter(model.label_logprobs([[*ids, *answer[:count]]], labels)[0])
    shares = [math.fsum(math.exp(next(values)) for _ in group) for group in groups]
    return [share / math.fsum(shares) for share in shares]


def _first_token(tokenizer: Any, word: str, spaced: bool) -> int:
    """Return the id that begins a word after a label, with or without the space before it."""
    lead = plain_ids(tokenizer, "x:")
    ids = plain_ids(tokenizer, "x: " + word if spaced else "x:" + word)
    return ids[len(lead)] if ids[: len(lead)] == lead else plain_ids(tokenizer, word)[0]


def _tokens_before(tokenizer: Any, answer: Sequence[int], start: int) -> int:
    """Return how many tokens come before the one that holds a character of the decoded answer."""
    for count in range(1, len(answer) + 1):
        if len(tokenizer.decode(answer[:count], skip_special_tokens=True)) > start:
            return count - 1
    return len(answer) - 1
