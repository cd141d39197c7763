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
    first, last = spans[0].start - bos, spans[-1].end - bos
    left = [(k, offsets[k][0]) for k in range(first) if ids[k] in codec.anchors]
    right = [(k + 1, offsets[k][1]) for k in range(last, len(ids)) if ids[k] in codec.anchors][:1]
    if codec.edge is not None:
        start = offsets[first][0] if first < len(ids) else len(text)
        stop = offsets[last - 1][1] if last > first else start
        begins = {at: k for k, (at, _) in reversed(list(enumerate(offsets)))}
        edges = [(begins[at], at) for at in map(_start, codec.edge.finditer(text)) if at in begins]
        left += [(k, at) for k, at in edges if at + 2 <= start]
        right += [(k, at) for k, at in edges if at - 1 >= stop][:1]
    begin, end = max(left, default=(0, 0)), min(right, default=(len(ids), len(text)))
    if codec.encode(text[begin[1] : end[1]]) != ids[begin[0] : end[0]]:
        begin, end = (0, 0), (len(ids), len(text))
    return Window(
        before=text[: begin[1]],
        after=text[end[1] :],
        head=ids[begin[0] : first],
        tail=ids[last : end[0]],
        first=begin[0] + bos,
        last=end[0] + bos,
    )


def _start(match: re.Match[str]) -> int:
    return match.start()


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
    by three facts: no token has it followed by a blank inside; no added token takes in white space
    next to it; and in all short contexts the two sides of the blank encode independently.
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
    """Whether `... character` and ` letter...` encode apart in all these contexts."""
    lefts = codec.encode_batch([c + character for c in contexts])
    for right in (" c", " C"):
        rights = codec.encode_batch([right + c for c in contexts])
        joined = codec.encode_batch(
            [f"{a}{character}{right}{b}" for a in contexts for b in contexts]
        )
        if joined != [a + b for a in lefts for b in rights]:
            return False
    return True
