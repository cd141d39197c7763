"""Byte-pair encoding with merges left out at random.

Source: Provilkov et al. 2020, arXiv 1910.13267, Algorithm 1. With no merge left out it is the
tokenizer's own segmentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random

from adversariallm.core.errors import ModelError
from adversariallm.tokenization.codec import Codec

BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece vocabularies write a blank."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class BytePairs:
    """The merges of a tokenizer."""

    def __init__(self, codec: Codec) -> None:
        """Read the merges of a fast tokenizer.

        Raises:
            ModelError: the tokenizer is not byte-pair encoding, or marks the parts of its words.
        """
        model = codec.algorithm
        marks = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        if model.get("type") != "BPE" or marks:
            kind = model.get("type", "a slow tokenizer")
            raise ModelError(
                f"the model's tokenizer is {kind}{f' with marks {marks!r}' if marks else ''}; "
                "leaving out merges needs a fast tokenizer of kind BPE without them"
            )
        pairs = [
            tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in model["merges"]
        ]
        self._codec = codec
        self._ids: dict[str, int] = model["vocab"]
        self._texts = {i: text for text, i in self._ids.items()}
        self._rank = {pair: rank for rank, pair in enumerate(pairs)}
        crossing = re.compile(f"[^{BLANK}]{BLANK}")
        self._apart = not any(crossing.search(a + b) for a, b in pairs)

    def encode(
        self, text: str, stretches: Sequence[tuple[int, int]], drop: float, draw: Random
    ) -> tuple[int, ...]:
        """Ids of a rendered text, with merges left out in some stretches of it.

        Args:
            text: what is encoded; added tokens in it stay whole.
            stretches: half-open character ranges in which merges may be left out. No merge crosses
                their borders there; all other ids are the tokenizer's.
            drop: probability that a merge is left out each time it could be made, in [0, 1].
            draw: the random stream.
        """
        ids, offsets = self._codec.encode_with_offsets(text)
        words = self._codec.word_ids(text)
        free = [self._free(i, span, stretches) for i, span in zip(ids, offsets, strict=True)]
        out: list[int] = []
        keys = zip(free, words, strict=True)
        for (stretch, _), group in groupby(zip(keys, ids, strict=True), key=lambda row: row[0]):
            part = [i for _, i in group]
            out += part if stretch is None else self._again(part, drop, draw)
        return tuple(out)

    def _free(
        self, token: int, span: tuple[int, int], stretches: Sequence[tuple[int, int]]
    ) -> int | None:
        """The stretch in which a token lies entirely, None for an added token and elsewhere."""
        if token in self._codec.added or token not in self._texts:
            return None
        for k, (start, end) in enumerate(stretches):
            if start <= span[0] and span[1] <= end:
                return k
        return None

    def _again(self, ids: Sequence[int], drop: float, draw: Random) -> list[int]:
        """The tokens of one word, made anew from its characters."""
        symbols: list[str] = []
        for text in (self._texts[i] for i in ids):
            symbols += [text] if BYTE.fullmatch(text) else text
        if any(s not in self._ids for s in symbols):
            return list(ids)  # characters that only ever stand inside larger tokens
        return [
            self._ids[piece]
            for part in self._parts(symbols)
            for piece in self.merge(part, drop, draw)
        ]

    def _parts(self, symbols: Sequence[str]) -> Iterator[list[str]]:
        """Stretches that no merge joins: vocabularies with blanks at the start of words only."""
        part: list[str] = []
        for symbol in symbols:
            if self._apart and part and symbol == BLANK and part[-1] != BLANK:
                yield part
                part = []
            part.append(symbol)
        if part:
            yield part

    def merge(self, symbols: Sequence[str], drop: float, draw: Random) -> list[str]:
        """Merge by priority until every merge that could be made is left out or none is left."""
        out = list(symbols)
        while True:
            found = sorted(
                (self._rank[pair], k)
                for k, pair in enumerate(zip(out, out[1:], strict=False))
                if pair in self._rank
            )
            kept = (k for _, k in found if not drop or draw.random() >= drop)
            at = next(kept, None)
            if at is None:
                return out
            out[at : at + 2] = [out[at] + out[at + 1]]
