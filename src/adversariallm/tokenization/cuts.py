"""Finds the stretch of a text around the slots outside of which nothing in a slot can change the tokenization.

It argues from the tokenizer's parts (added tokens, vocabulary, a probe of the pre-tokenizer), never from its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from adversariallm.core.types import Segments

if TYPE_CHECKING:
    from adversariallm.tokenization.chat import ChatTokenizer
    from adversariallm.tokenization.codec import Codec

WORD_EDGE = re.compile(r"(?<=[A-Za-z]{2}) (?=[A-Za-z]{2})")
_PROBE_ALPHABET = ("a", "B", "1", " ", "\n", ".", "'", "s", "\u00e9", "\u4e2d", "\u0301")


class Window(NamedTuple):
    """A stretch of the base text.

    Attributes:
        before: fixed text on the left that need not be encoded.
        after: the same on the right.
        head: ids of the stretch before the first slot.
        tail: ids of the stretch after the last slot.
        first: index of the stretch's first id in `input_ids`.
        last: one past its last id.
    """

    before: str
    after: str
    head: list[int]
    tail: list[int]
    first: int
    last: int


def find_window(chat: ChatTokenizer, segments: Segments, text: str) -> Window:
    """The shortest stretch that can be shown to decide on its own; the whole text where nothing can be shown."""
    codec = chat.codec
    ids, offsets = codec.encode_with_offsets(text)
    bos = len(chat.missing_bos(ids))
    spans = segments.named("slot")
    first_slot, last_slot = spans[0].start - bos, spans[-1].end - bos
    anchors = codec.anchors
    left = [k for k in range(first_slot) if ids[k] in anchors]
    right = [k for k in range(last_slot, len(ids)) if ids[k] in anchors]
    lefts = [left[-1] if left else 0]
    rights = [right[0] + 1 if right else len(ids)]
    if codec.cuts_at_words:
        starts = {s: k for k, (s, _) in reversed(list(enumerate(offsets)))}
        edges = [(m.start(), starts.get(m.start())) for m in WORD_EDGE.finditer(text)]
        slot_start = offsets[first_slot][0] if first_slot < len(ids) else len(text)
        slot_end = offsets[last_slot - 1][1] if last_slot > 0 else 0
        if last_slot == first_slot:
            slot_end = slot_start
        lefts += [k for c, k in edges if k is not None and c + 3 <= slot_start and k > lefts[0]]
        rights += [k for c, k in edges if k is not None and c - 2 >= slot_end and k < rights[0]][:1]
    first, last = lefts[-1], rights[-1]
    for f, e in ((first, last), (lefts[0], rights[0]), (0, len(ids))):
        start = offsets[f][0] if f < len(ids) and f else 0
        stop = offsets[e][0] if 0 < e < len(ids) and e not in (rights[0],) else len(text)
        if e == rights[0] and right:
            stop = offsets[right[0]][1]
        if codec.encode(text[start:stop]) == ids[f:e]:
            break
    return Window(text[:start], text[stop:], ids[f:first_slot], ids[last_slot:e], f + bos, e + bos)


def find_anchors(codec: Codec) -> frozenset[int]:
    """Ids of added tokens whose text is always read as that token, whatever stands around it.

    Added tokens are matched on the raw text, leftmost first, before anything else happens, and what lies between two
    matches is tokenized on its own. So a match is certain if no other added token can overlap it from the left or
    be longer from the same place.
    """
    contents = {i: t.content for i, t in codec.added.items() if not t.normalized and t.content}
    every = [t.content for t in codec.added.values() if t.content]
    heads = {c[:k] for c in every for k in range(1, len(c) + 1)}
    del heads
    tails = {c[k:] for c in every for k in range(1, len(c))}
    safe = set()
    for i, c in contents.items():
        token = codec.added[i]
        if token.single_word or any(c[:k] in tails for k in range(1, len(c) + 1)):
            continue
        if any(c in o and o != c for o in every):
            continue
        safe.add(i)
    return frozenset(safe)


def probe_word_cuts(codec: Codec) -> bool:
    """Whether tokenization starts anew at a blank between two words of ASCII letters.

    Shown by three facts: no token of the vocabulary and no added token has a letter followed by a blank inside, no
    added token takes in white space next to letters, and for all short contexts both sides encode independently.
    """
    inside = re.compile(r"[A-Za-z] ")
    if any(piece is not None and inside.search(piece) for piece in codec.pieces):
        return False
    for t in codec.added.values():
        edges = (t.content[:1] + t.content[-1:]).isascii() and re.search(
            "[A-Za-z]", t.content[:1] + t.content[-1:]
        )
        if inside.search(t.content) or ((t.lstrip or t.rstrip or t.single_word) and edges):
            return False
    contexts = ["".join(p) for n in range(3) for p in product(_PROBE_ALPHABET, repeat=n)]
    lefts = codec.encode_batch([c + "ab" for c in contexts])
    rights = codec.encode_batch([" cd" + c for c in contexts])
    both: Sequence[tuple[int, int]] = [
        (i, j) for i in range(len(contexts)) for j in range(len(contexts))
    ]
    joined = codec.encode_batch([f"{contexts[i]}ab cd{contexts[j]}" for i, j in both])
    return all(joined[n] == lefts[i] + rights[j] for n, (i, j) in enumerate(both))
