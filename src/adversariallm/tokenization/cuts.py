"""Finds the stretch of a text outside of which nothing in a slot can change the tokenization.

It argues from the tokenizer's parts (added tokens, vocabulary, a probe of the pre-tokenizer), never
from its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from adversariallm.core.types import Segments

if TYPE_CHECKING:
    from adversariallm.tokenization.chat import ChatTokenizer
    from adversariallm.tokenization.codec import Codec

_PROBE_ALPHABET = ("a", "B", "1", " ", "\n", ".", "'", "s", "\u00e9", "\u4e2d", "\u0301")
_PRINTABLE = [chr(c) for c in range(33, 127)]


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
    """The shortest stretch that can be shown to decide on its own, or the whole text."""
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
    if codec.edge is not None:
        starts = {s: k for k, (s, _) in reversed(list(enumerate(offsets)))}
        edges = [(m.start(), starts.get(m.start())) for m in codec.edge.finditer(text)]
        slot_start = offsets[first_slot][0] if first_slot < len(ids) else len(text)
        slot_end = offsets[last_slot - 1][1] if last_slot > first_slot else slot_start
        lefts += [k for c, k in edges if k is not None and c + 2 <= slot_start and k > lefts[0]]
        rights += [k for c, k in edges if k is not None and c - 1 >= slot_end and k < rights[0]][:1]
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

    Added tokens are matched on the raw text, leftmost first, before anything else happens, and what
    lies between two matches is tokenized on its own. So a match is certain if no other added token
    can overlap it from the left or be longer from the same place.
    """
    every = [t.content for t in codec.added.values() if t.content]
    tails = {c[k:] for c in every for k in range(1, len(c))}
    joined = "\0".join(every)
    safe = set()
    for i, token in codec.added.items():
        content = token.content
        heads = (content[:k] for k in range(1, len(content) + 1))
        if not content or token.normalized or token.single_word or joined.count(content) > 1:
            continue
        if tails.isdisjoint(heads):
            safe.add(i)
    return frozenset(safe)


def find_edge(codec: Codec) -> re.Pattern[str] | None:
    """A pattern for the blanks at which tokenization starts anew, or None.

    Such a blank stands between one of certain characters and an ASCII letter. A character qualifies
    by three
    facts: no token has it followed by a blank inside; no added token takes in white space next to
        it;
    and in all short contexts what is left and right of the blank encodes independently.
    """
    if any(t.single_word or (t.lstrip and t.content[:1].isalpha()) for t in codec.added.values()):
        return None
    inside = re.compile(r"(.)(?= )", re.DOTALL)
    texts = [*codec.token_texts, *(t.content for t in codec.added.values())]
    if None in texts or not any(codec.pieces):
        return None
    taken = {c for t in texts if t is not None and " " in t for c in inside.findall(t)}
    taken |= {t.content[-1:] for t in codec.added.values() if t.rstrip}
    short = ["", *_PROBE_ALPHABET]
    long = [a + b for a in _PROBE_ALPHABET for b in short]
    kept = [c for c in _PRINTABLE if c not in taken and _independent(codec, c, short)]
    if not kept or ("a" in kept and not _independent(codec, "a", ["", *long])):
        return None
    return re.compile(f"(?<=[{re.escape(''.join(kept))}]) (?=[A-Za-z])")


def _independent(codec: Codec, character: str, contexts: Sequence[str]) -> bool:
    """Whether `... character` and ` c...` encode apart from each other in all these contexts."""
    lefts = codec.encode_batch([c + character for c in contexts])
    rights = codec.encode_batch([" c" + c for c in contexts])
    joined = codec.encode_batch([f"{a}{character} c{b}" for a in contexts for b in contexts])
    return joined == [a + b for a in lefts for b in rights]
