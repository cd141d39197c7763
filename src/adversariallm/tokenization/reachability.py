"""Decides which token ids at an attack slot some text can produce, for many candidates at once.

Definition (`ReachabilityFilter.by_definition`): decode the slot with everything to its left, put
that text into the conversation, render and tokenize the whole conversation; reachable means that
exactly the same ids come out everywhere. The batched path must agree with it; it encodes only the
stretch between places where `cuts` shows that tokenization starts anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from adversariallm.core.errors import TemplateError
from adversariallm.core.types import Merge, Segments
from adversariallm.tokenization.cuts import Window, find_window
from adversariallm.tokenization.segments import merges_at, slots_of, split_slots

if TYPE_CHECKING:
    import torch

    from adversariallm.tokenization.chat import ChatTokenizer

MERGES_SHOWN = 8


@dataclass(frozen=True)
class ReachabilityStats:
    """Counts over candidates; `sampled = kept + rejected_isolated + rejected_conversation`.

    Attributes:
        sampled: candidates looked at.
        kept: reachable ones.
        rejected_isolated: unreachable, and decoding and encoding the slot on its own shows it
            already.
        rejected_conversation: unreachable though the isolated check passes them.
        merged: of the latter, how many changed `prompt|slot`, `slot|post`, or only the `slot`
            itself.
        examples: merging tokens with the two strings, at most eight.
    """

    sampled: int = 0
    kept: int = 0
    rejected_isolated: int = 0
    rejected_conversation: int = 0
    merged: dict[str, int] = field(default_factory=dict)
    examples: tuple[Merge, ...] = ()

    def __add__(self, other: ReachabilityStats) -> ReachabilityStats:
        """Counts of both."""
        return ReachabilityStats(
            self.sampled + other.sampled,
            self.kept + other.kept,
            self.rejected_isolated + other.rejected_isolated,
            self.rejected_conversation + other.rejected_conversation,
            dict(Counter(self.merged) + Counter(other.merged)),
            (*self.examples, *other.examples)[:MERGES_SHOWN],
        )


@dataclass(frozen=True)
class Reachability:
    """Verdicts on W candidates.

    Attributes:
        kept: per candidate, whether it is reachable.
        texts: per candidate, the text at each slot; None where ids have no text of their own there.
        stats: counts.
    """

    kept: tuple[bool, ...]
    texts: tuple[tuple[str, ...] | None, ...]
    stats: ReachabilityStats

    @property
    def indices(self) -> tuple[int, ...]:
        """Positions of the reachable candidates."""
        return tuple(i for i, k in enumerate(self.kept) if k)

    def mask(self) -> torch.Tensor:
        """`[W]` bool tensor of the verdicts."""
        import torch

        return torch.tensor(self.kept, dtype=torch.bool)


class ReachabilityFilter:
    """Verdicts for one segmented conversation; building it takes milliseconds, so build it once."""

    def __init__(self, chat: ChatTokenizer, segments: Segments) -> None:
        """Learn what is fixed around the slots.

        Args:
            chat: tokenizer and template that made the segments.
            segments: a conversation with at least one slot.
        """
        self.chat, self.segments = chat, segments
        self._codec = chat.codec
        self._turn, self._slots = slots_of(segments)
        self._spans = segments.named("slot")
        content = segments.conversation[self._turn].content
        edges = [0, *(e for s in self._slots for e in (s.start, s.end)), len(content)]
        self._fixed = [content[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
        rendered = chat.render(segments.conversation, prefill=segments.prefill)
        index = self._turn + len(chat.prepare(segments.conversation)) - len(segments.conversation)
        span, self._trim = rendered.spans[index], rendered.trims[index]
        self._left, self._right = rendered.text[: span.start], rendered.text[span.end :]
        self._text = rendered.text
        self._watched = chat.template.inspected
        given = [content[s.start : s.end] for s in self._slots]
        self._always_render = not content.strip() or self._is_watched(given)

    def __call__(
        self, candidates: Sequence[Sequence[int]] | torch.Tensor, *, statistics: bool = True
    ) -> Reachability:
        """Verdicts on candidate slot ids.

        Args:
            candidates: `[W, n]`, or W rows of any length where there is a single slot.
            statistics: also tell why candidates were rejected (one more batch over the rejected
                ones).
        """
        rows = [[int(i) for i in row] for row in _lists(candidates)]
        texts = self._texts(rows)
        encoded: dict[int, list[int]] = {}
        windows = {
            i: w for i, t in enumerate(texts) if t and (w := self._window_text(t)) is not None
        }
        for i, ids in zip(windows, self._codec.encode_similar(list(windows.values())), strict=True):
            encoded[i] = ids
        kept = [
            encoded[i] == self._expected(row)
            if i in encoded
            else texts[i] is not None and self.by_definition(row)
            for i, row in enumerate(rows)
        ]
        stats = self._statistics(rows, texts, kept, encoded) if statistics else ReachabilityStats()
        return Reachability(tuple(kept), tuple(texts), stats)

    def by_definition(self, slot_ids: Sequence[int]) -> bool:
        """The ground truth for one candidate: render and tokenize the whole conversation."""
        texts = self.texts_of(slot_ids)
        if texts is None:
            return False
        ids = self._encode_conversation(texts)
        return ids is not None and ids == self.segments.input_with(slot_ids)

    def texts_of(self, slot_ids: Sequence[int]) -> tuple[str, ...] | None:
        """The text that the ids read as at each slot, in context; None where they have none."""
        row = self.segments.input_with(slot_ids)
        grown = len(row) - len(self.segments.input_ids)
        texts = []
        for span, slot in zip(self._spans, self._slots, strict=True):
            end = span.end + grown if len(self._spans) == 1 else span.end
            text = self._codec.decode_after(row[: span.start], row[span.start : end])
            if text is None or not text.startswith(slot.lead):
                return None
            texts.append(text[len(slot.lead) :])
        return tuple(texts)

    @cached_property
    def _window(self) -> Window:
        return find_window(self.chat, self.segments, self._text)

    def _texts(self, rows: list[list[int]]) -> list[tuple[str, ...] | None]:
        """`texts_of` for all rows, from the table of token texts where that is exact."""
        pieces = self._codec.pieces
        out: list[tuple[str, ...] | None] = []
        lengths = [len(s) for s in self._spans]
        for row in rows:
            fast = self._texts_from(pieces, row, lengths)
            out.append(self.texts_of(row) if fast is None else fast)
        return out

    def _texts_from(
        self, pieces: Sequence[str | None], row: Sequence[int], lengths: Sequence[int]
    ) -> tuple[str, ...] | None:
        """Texts as concatenated pieces; None where only decoding in context tells."""
        texts, at = [], 0
        for slot, span, length in zip(self._slots, self._spans, lengths, strict=True):
            n = len(row) if len(lengths) == 1 else length
            try:
                text = "".join([pieces[i] for i in row[at : at + n]])  # type: ignore[misc]
            except (TypeError, IndexError):
                return None
            at += n
            if span.start == 0 or not text.startswith(slot.lead):
                return None
            texts.append(text[len(slot.lead) :])
        return tuple(texts)

    def _content_with(self, texts: Sequence[str]) -> str:
        """The turn's content with these texts at its slots."""
        parts = [self._fixed[0]]
        for text, fixed in zip(texts, self._fixed[1:], strict=True):
            parts += (text, fixed)
        return "".join(parts)

    def _window_text(self, texts: Sequence[str]) -> str | None:
        """The stretch to encode; None where only rendering tells what the template does."""
        content = self._content_with(texts)
        if self._always_render or not content.strip() or self._is_watched(texts):
            return None
        text = self._left + self._trim(content) + self._right
        w = self._window
        if not (text.startswith(w.before) and text.endswith(w.after)):
            return None
        return text[len(w.before) : len(text) - len(w.after)]

    def _expected(self, row: list[int]) -> list[int]:
        """The ids that the window must give."""
        w = self._window
        if len(self._spans) == 1:
            return [*w.head, *row, *w.tail]
        ids = self.segments.input_with(row)
        return list(ids[w.first : w.last])

    def _is_watched(self, texts: Sequence[str]) -> bool:
        """Whether a string that the template looks for touches a slot."""
        content, at = self._content_with(texts), len(self._fixed[0])
        for text, fixed in zip(texts, self._fixed[1:], strict=True):
            for w in self._watched:
                edge = len(w) - 1 if text else len(w)
                if w in content[max(0, at - edge) : at + len(text) + edge]:
                    return True
            at += len(text) + len(fixed)
        return False

    def _encode_conversation(self, texts: Sequence[str]) -> tuple[int, ...] | None:
        """Ids of the whole conversation with these texts; None where the template refuses it."""
        content = self._content_with(texts)
        conversation = self.segments.conversation.with_content(self._turn, content)
        try:
            return self.chat.encode(conversation, prefill=self.segments.prefill)
        except TemplateError:
            return None

    def _statistics(
        self,
        rows: list[list[int]],
        texts: Sequence[tuple[str, ...] | None],
        kept: Sequence[bool],
        encoded: Mapping[int, list[int]],
    ) -> ReachabilityStats:
        """Why the rejected candidates were rejected."""
        rejected = [i for i, k in enumerate(kept) if not k]
        parts = [(i, p) for i in rejected for p in split_slots(self.segments, rows[i])]
        alone = self._codec.encode_similar(self._codec.decode_batch([p for _, p in parts]))
        failed = {i for (i, p), a in zip(parts, alone, strict=True) if list(p) != a}
        late = [i for i in rejected if i not in failed]
        examples: list[Merge] = []
        for i in late:
            t = texts[i]
            if t is not None and len(examples) < MERGES_SHOWN:
                examples += self._merges(t)
        return ReachabilityStats(
            sampled=len(rows),
            kept=sum(kept),
            rejected_isolated=len(failed),
            rejected_conversation=len(late),
            merged=dict(Counter(self._where(encoded.get(i)) for i in late)),
            examples=tuple(examples[:MERGES_SHOWN]),
        )

    def _where(self, ids: list[int] | None) -> str:
        """Which boundary changed, from the ids that a window gave."""
        head, tail = self._window.head, self._window.tail
        if ids is None:
            return "slot"
        if ids[: len(head)] != head:
            return "prompt|slot"
        return "slot|post" if tail and ids[-len(tail) :] != tail else "slot"

    def _merges(self, texts: Sequence[str]) -> tuple[Merge, ...]:
        """Tokens that straddle the ends of the slots when these texts stand there."""
        content = self._content_with(texts)
        trimmed = self._trim(content)
        text = self._left + trimmed + self._right
        at = len(self._left) + len(self._fixed[0]) - content.find(trimmed)
        edges = []
        for t, fixed in zip(texts, self._fixed[1:], strict=True):
            edges += [(at, "prompt", "slot"), (at + len(t), "slot", "post")]
            at += len(t) + len(fixed)
        return merges_at(text, self._codec.encode_with_offsets(text).offsets, edges)


def _lists(candidates: Sequence[Sequence[int]] | torch.Tensor) -> Sequence[Sequence[int]]:
    """Rows of ids from a tensor or nested sequences."""
    to_list = getattr(candidates, "tolist", None)
    return to_list() if to_list is not None else candidates  # type: ignore[return-value]
