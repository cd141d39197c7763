"""Multiple choice by likelihood: which letter a model finds most probable after the prompt.

Answers that a model writes out are scored by judges: `exact_match` reads letters and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from adversariallm.core.protocols import WhiteBoxModel
from adversariallm.core.types import Behavior

LETTERS = "ABCDEFGHIJ"


def choices_by_likelihood(
    model: WhiteBoxModel, behaviors: Sequence[Behavior], *, chat: bool = False
) -> list[str]:
    """The most probable letter for each item, the first of equals.

    The letters are scored as continuations ` A`, ` B` ... of the plain prompt, or as the beginning
    of the answer, without the blank, where `chat` is set.

    Args:
        model: a local model.
        behaviors: items with `extra["choices"]`.
        chat: put the prompt through the chat template instead of encoding it as plain text.
    """
    return [_best_letter(model, b, chat) for b in behaviors]


def _best_letter(model: WhiteBoxModel, behavior: Behavior, chat: bool) -> str:
    letters = LETTERS[: len(behavior.extra["choices"])]
    if chat:
        prompt = model.chat.encode(behavior.conversation)
        ends = [_continuation(model, "", x) for x in letters]
    else:
        text = "\n\n".join(m.content for m in behavior.conversation)
        prompt = model.chat.encode_text(text)
        ends = [_continuation(model, text, f" {x}") for x in letters]
    found = model.losses([prompt] * len(letters), ends, shared=len(prompt) - 1)
    totals = [float(row.sum()) for row in found.per_token]
    return letters[totals.index(min(totals))]


def _continuation(model: WhiteBoxModel, text: str, end: str) -> tuple[int, ...]:
    """Ids of `end` as they follow `text`."""
    whole, start = model.chat.encode_text(text + end), model.chat.encode_text(text)
    return whole[len(start) :]
