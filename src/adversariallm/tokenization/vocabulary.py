"""Says which token ids an attack may put into a slot, as a mask over embedding rows.

A mask looks at one token at a time; whether tokens stay apart in a text is `reachability`'s
question.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from adversariallm.tokenization.codec import Codec

if TYPE_CHECKING:
    import torch


def vocabulary_mask(
    tokenizer: Any,
    rows: int | None = None,
    *,
    ascii_only: bool = True,
    allow_special: bool = False,
) -> torch.Tensor:
    """`[rows]` bool, true where a token may be used.

    Never true: ids without an embedding row or beyond the tokenizer, tokens without a text of their
    own (fragments of characters, empty ones), and twins that no text produces, such as the byte
    token of a letter that has a token of its own.

    Args:
        tokenizer: a transformers tokenizer or a `Codec` around one.
        rows: number of embedding rows; None takes the tokenizer's length.
        ascii_only: keep printable ASCII only (no newline, no tab).
        allow_special: also added tokens whose text reads as that token.
    """
    import torch

    codec = tokenizer if isinstance(tokenizer, Codec) else Codec(tokenizer)
    rows = len(codec) if rows is None else rows
    allowed = _allowed(_ByContent(codec), ascii_only, allow_special)
    mask = torch.zeros(rows, dtype=torch.bool)
    usable = [i for i in allowed if i < rows]
    mask[usable] = True
    return mask


class _ByContent:
    """A codec that equals every codec with the same vocabulary and pipeline."""

    def __init__(self, codec: Codec) -> None:
        self.codec, self.key = codec, codec.content_hash

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByContent) and other.key == self.key


@lru_cache(maxsize=16)
def _allowed(by_content: _ByContent, ascii_only: bool, allow_special: bool) -> tuple[int, ...]:
    """Ids that may be used, ascending."""
    codec = by_content.codec
    special = codec.special_ids | codec.added.keys()
    dead = _dead_twins(codec)
    out = []
    for i, piece in enumerate(codec.pieces):
        if not piece or i in dead:
            continue
        if i in special and not (allow_special and codec.encode(piece) == [i]):
            continue
        if ascii_only and not (piece.isascii() and piece.isprintable()):
            continue
        out.append(i)
    return tuple(out)


def _dead_twins(codec: Codec) -> set[int]:
    """Ids that read like another id and that encoding their text gives in no common context."""
    by_text: dict[str, list[int]] = {}
    for i, piece in enumerate(codec.pieces):
        if piece:
            by_text.setdefault(piece, []).append(i)
    shared = [t for t, ids in by_text.items() if len(ids) > 1]
    produced: set[int] = set()
    for context in ("", "a", " ", "\n", ".", "1"):
        produced.update(*codec.encode_batch([context + t for t in shared]))
    return {i for t in shared for i in by_text[t]} - produced
