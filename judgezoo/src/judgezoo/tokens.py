"""Text to token ids for judges: one beginning-of-text token, user text that stays text, clipping.

It takes any transformers tokenizer and imports no model library itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from judgezoo.filling import Filled

__all__ = ["clip_text", "encode", "fit_response", "plain_ids", "special_strings"]


def special_strings(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that the tokenizer reads as special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return tuple({str(token) for token in added.values() if token.special})


def encode(tokenizer: Any, filled: Filled) -> list[int]:
    """Return the ids of a filled prompt, with the beginning-of-text token once.

    Strings in the inserted values that look like special tokens are encoded as plain text.

    Args:
        tokenizer: a transformers tokenizer.
        filled: the prompt and where the values stand in it.
    """
    specials = special_strings(tokenizer)
    inserted = [filled.text[start:end] for start, end in filled.spans]
    if any(special in value for value in inserted for special in specials):
        ids = _encode_protected(tokenizer, filled, specials)
    else:
        encoding = tokenizer(filled.text, add_special_tokens=False, verbose=False)
        ids = list(encoding["input_ids"])
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:1] != [bos] and _adds_bos(tokenizer):
        return [bos, *ids]
    return ids


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text alone; strings that look like special tokens are text."""
    encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return list(encoding["input_ids"])


def _adds_bos(tokenizer: Any) -> bool:
    """Tell whether the tokenizer starts texts with its beginning-of-text token."""
    ids = tokenizer("a", verbose=False)["input_ids"]
    return bool(ids[:1] == [tokenizer.bos_token_id])


def _encode_protected(tokenizer: Any, filled: Filled, specials: Sequence[str]) -> list[int]:
    """Encode the template's special tokens as such and everything else as text."""
    ids: list[int] = []
    start = position = 0
    text = filled.text
    ordered = sorted(specials, key=len, reverse=True)
    while position < len(text):
        inside = next((end for begin, end in filled.spans if begin <= position < end), None)
        if inside is not None:
            position = inside
            continue
        special = next((s for s in ordered if text.startswith(s, position)), None)
        if special is None:
            position += 1
            continue
        ids += plain_ids(tokenizer, text[start:position])
        ids.append(tokenizer.convert_tokens_to_ids(special))
        position += len(special)
        start = position
    return ids + plain_ids(tokenizer, text[start:])


def clip_text(tokenizer: Any, text: str, limit: int) -> str:
    """Return the longest beginning of a text that has at most ``limit`` tokens.

    Args:
        tokenizer: a transformers tokenizer.
        text: what to clip; returned unchanged when short enough.
        limit: number of tokens, without special tokens.
    """
    ids = plain_ids(tokenizer, text)
    if len(ids) <= limit:
        return text
    return str(
        tokenizer.decode(ids[:limit], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def fit_response(
    build: Callable[[str], list[int]], tokenizer: Any, response: str, limit: int
) -> tuple[list[int], bool] | None:
    """Build prompt ids that fit, shortening the response from its end where needed.

    The instructions before and after the response are never cut.

    Args:
        build: makes the prompt ids for a response.
        tokenizer: a transformers tokenizer.
        response: the judged text.
        limit: most ids.

    Returns:
        The ids and whether the response was shortened; None when the prompt does not fit even with
        an empty response.
    """
    ids = build(response)
    if len(ids) <= limit:
        return ids, False
    if len(build("")) > limit:
        return None
    length = len(plain_ids(tokenizer, response))
    keep = max(0, length - (len(ids) - limit))
    while True:
        ids = build(clip_text(tokenizer, response, keep) if keep else "")
        if len(ids) <= limit:
            return ids, True
        keep = max(0, keep - max(1, len(ids) - limit))
