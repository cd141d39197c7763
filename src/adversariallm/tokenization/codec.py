"""Text to ids and back on one tokenizer, whatever its padding, truncation and clean-up settings.

It knows nothing of conversations or templates, and it never adds special tokens on its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, groupby
from typing import Any, NamedTuple

from adversariallm.core.errors import ModelError

CONTEXT = 16
"""Ids kept on the left when a stretch is decoded in context; more than a character has bytes."""

MEMORY = 200_000
"""Chunks of text whose ids are kept in memory."""
FEW = 4
"""With more new chunks than this for each text, whole texts are encoded."""


class Encoded(NamedTuple):
    """Ids of a text and the half-open character range that each stands for."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Codec:
    """Encodes and decodes with a transformers tokenizer, fast or slow, without changing it."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a transformers tokenizer; a fast one gets a private back end on its vocabulary."""
        self.tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._backend = None if backend is None else _private_backend(backend)

    def __len__(self) -> int:
        """One more than the largest id the tokenizer knows."""
        return max(len(self.tokenizer), 1 + max(self.added, default=-1))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; strings of added tokens in it become these tokens, nothing is added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; on a fast tokenizer in one parallel call."""
        if self._backend is None:
            return [list(self.tokenizer.encode(t, add_special_tokens=False)) for t in texts]
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [e.ids for e in encodings]

    def encode_with_offsets(self, text: str) -> Encoded:
        """Ids of `text` with character ranges, by decoding prefixes where there are none."""
        if self._backend is None:
            ids = self.encode(text)
            return Encoded(ids, self._offsets_by_decoding(text, ids))
        encoding = self._backend.encode(text, add_special_tokens=False)
        return Encoded(encoding.ids, encoding.offsets)

    def word_ids(self, text: str) -> list[int | None]:
        """For each id of `text` the number of the word it stands in; no token joins two words.

        Raises:
            ModelError: the tokenizer is a slow one, which does not tell.
        """
        if self._backend is None:
            raise ModelError("a slow tokenizer does not tell its words; use the fast one")
        return list(self._backend.encode(text, add_special_tokens=False).word_ids)

    @property
    def algorithm(self) -> dict[str, Any]:
        """How words are cut into tokens, as the file of a fast tokenizer has it; empty else.

        `type` names the kind, such as BPE; the other keys depend on it.
        """
        if self._backend is None:
            return {}
        found: dict[str, Any] = json.loads(self._backend.model.__getstate__())
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out, nothing cleaned up."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Text of each row of ids, special tokens written out, nothing cleaned up."""
        rows = [list(r) for r in rows]
        if self._backend is None:
            return [
                self.tokenizer.decode(
                    r, skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
                for r in rows
            ]
        return list(self._backend.decode_batch(rows, skip_special_tokens=False))

    def decode_after(self, context: Sequence[int], ids: Sequence[int]) -> str | None:
        """Text that `ids` add after `context`; None where they change how the context itself reads.

        SentencePiece decoders drop the first blank and partial characters depend on their
        neighbors, so a stretch of ids has a text only in its context.
        """
        context = list(context)
        before = self.decode(context)
        both = self.decode([*context, *ids])
        return both[len(before) :] if both.startswith(before) else None

    @cached_property
    def added(self) -> dict[int, Any]:
        """Added tokens by id: special tokens, turn markers, reserved tokens."""
        return dict(self.tokenizer.added_tokens_decoder)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are removed from what a model says: special added tokens, BOS, EOS, padding."""
        flagged = {i for i, t in self.added.items() if t.special}
        return frozenset(flagged | set(self.tokenizer.all_special_ids))

    @cached_property
    def bos_ids(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before plain text: usually BOS or nothing."""
        plain = self.encode("a")
        full = list(self.tokenizer("a")["input_ids"])
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return tuple(full[:start])
        raise ModelError(
            f"the tokenizer encodes 'a' as {full} with and {plain} without special tokens:"
            " expected the second inside the first"
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over vocabulary, pipeline and added tokens; equal for equal tokenizers."""
        sha = hashlib.sha256()
        if self._backend is None:
            sha.update(repr(sorted(self.tokenizer.get_vocab().items())).encode())
        else:
            b = self._backend
            for part in (b.model, b.normalizer, b.pre_tokenizer, b.post_processor, b.decoder):
                sha.update(b"-" if part is None else part.__getstate__())
        sha.update(repr(sorted((i, repr(t)) for i, t in self.added.items())).encode())
        return sha.hexdigest()

    @cached_property
    def token_texts(self) -> list[str | None]:
        """Per id, what it adds to a text after a letter; None where nothing can be said."""
        guard = self.encode("a")[-1:]
        head = self.decode(guard)
        pairs = self.decode_batch([[*guard, i] for i in range(len(self))])
        return [t[len(head) :] if t.startswith(head) else None for t in pairs]

    @cached_property
    def pieces(self) -> list[str | None]:
        """Per id, the text it adds wherever it stands; None where that depends on its neighbors.

        Checked by decoding the whole vocabulary in stretches: where one does not read as the
        concatenation of its tokens, no token has a text of its own.
        """
        pieces = [t if t and "\ufffd" not in t else None for t in self.token_texts]
        guard = self.encode("a")[-1:]
        clean = [i for i, p in enumerate(pieces) if p is not None]
        step = 1 + len(clean) // 50
        rows = [[*guard, *clean[k::step]] for k in range(step)]
        head = self.decode(guard)
        for row, text in zip(rows, self.decode_batch(rows), strict=True):
            if text != head + "".join(pieces[i] or "" for i in row[1:]):
                return [None] * len(pieces)
        return pieces

    @cached_property
    def anchors(self) -> frozenset[int]:
        """Added tokens at which tokenization always starts anew; see `cuts.find_anchors`."""
        from adversariallm.tokenization.cuts import find_anchors

        return find_anchors(self) if self._backend is not None else frozenset()

    @cached_property
    def edge(self) -> re.Pattern[str] | None:
        """Blanks at which tokenization always starts anew; see `cuts.find_edge`."""
        from adversariallm.tokenization.cuts import find_edge

        return find_edge(self) if self._backend is not None else None

    @cached_property
    def _chunks(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Ids of chunks seen before: starts of texts, and what follows an edge's blank."""
        return {}, {}

    def encode_similar(self, texts: Sequence[str]) -> list[list[int]]:
        """Same as `encode_batch`, fast where texts share words: each is encoded once.

        With many chunks not seen before the texts are encoded whole, which then costs less.
        """
        if self.edge is None:
            return self.encode_batch(texts)
        firsts, rests = self._chunks
        if len(rests) > MEMORY:
            firsts.clear()
            rests.clear()
        chunks = [self.edge.split(t) for t in texts]
        new_firsts = list({cs[0] for cs in chunks} - firsts.keys())
        new_rests = list({c for cs in chunks for c in cs[1:]} - rests.keys())
        if len(new_rests) > FEW * len(texts):
            return self.encode_batch(texts)
        ids = self.encode_batch([*new_firsts, *(" " + c for c in new_rests)])
        firsts.update(zip(new_firsts, ids, strict=False))
        rests.update(zip(new_rests, ids[len(new_firsts) :], strict=True))
        return [[*firsts[c], *chain.from_iterable([rests[r] for r in cs])] for c, *cs in chunks]

    def _offsets_by_decoding(self, text: str, ids: list[int]) -> list[tuple[int, int]]:
        """Character ranges from the lengths of decoded prefixes, checked against `text`."""
        whole = self.decode(ids)
        shift = len(whole) - len(text)
        if not (whole == text or (shift == 1 and whole[1:] == text)):
            raise ModelError(
                f"the tokenizer has no offsets and does not give a text back: {text[:80]!r} became"
                f" {whole[:80]!r}; use its fast version"
            )
        ends, last = [], 0
        for k in range(1, len(ids) + 1):
            prefix = self.decode(ids[:k])
            same = len(prefix) if text.startswith(prefix[shift:]) else last + shift
            last = max(last, same - shift)
            ends.append(last)
        return list(zip([0, *ends], ends, strict=False))


def _private_backend(backend: Any) -> Any:
    """A back end with the same model and pipeline, whose padding nobody else switches on."""
    from tokenizers import Tokenizer

    copy = Tokenizer(backend.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(backend, name)
        if part is not None:
            setattr(copy, name, part)
    added = backend.get_added_tokens_decoder()
    for special, group in groupby((added[i] for i in sorted(added)), key=lambda t: t.special):
        (copy.add_special_tokens if special else copy.add_tokens)(list(group))
    if copy.get_added_tokens_decoder() == added:
        return copy
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy
