"""Conversations to token ids with exact segments, for one tokenizer and one chat template.

It is the only place that combines the two; it knows no model, and draws nothing at random.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.errors import ConfigError, TemplateError
from adversariallm.core.types import Conversation, Message, Segments, Span
from adversariallm.tokenization.codec import CONTEXT, Codec
from adversariallm.tokenization.formats import find_template
from adversariallm.tokenization.frame import Frame
from adversariallm.tokenization.reachability import Reachability, ReachabilityFilter
from adversariallm.tokenization.segments import (
    CharSlot,
    Cut,
    Slot,
    cut_slot,
    label_spans,
    merges_at,
    place,
    slots_of,
    split_slots,
)
from adversariallm.tokenization.stops import Stops, find_stops
from adversariallm.tokenization.template import DEFAULT_CLOCK, ChatTemplate, Rendered, Trim
from adversariallm.tokenization.thinking import Thinking, split_reasoning, thinking_variables
from adversariallm.tokenization.vocabulary import vocabulary_mask

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SystemPrompt:
    """The effective system prompt and where it is from.

    Attributes:
        source: `template` (whatever the template does on its own), `none`, `user` or `asset:<id>`.
        text: the text of the last two.
    """

    source: str = "template"
    text: str | None = None

    def __post_init__(self) -> None:
        """A text goes with a source that has one."""
        if (self.source in ("template", "none")) != (self.text is None):
            raise ConfigError(
                f"system prompt source {self.source!r} with text {self.text!r}: `template` and"
                " `none` have no text, `user` and `asset:<id>` have one"
            )


class ChatTokenizer:
    """A tokenizer and a chat template, with clock, system prompt and thinking switch fixed."""

    def __init__(
        self,
        tokenizer: Any,
        template: str | None = None,
        *,
        clock: datetime = DEFAULT_CLOCK,
        system: SystemPrompt | str | None = None,
        thinking: Thinking = "default",
        answer_at: Literal["answer", "start"] = "answer",
        template_variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Combine them; ConfigError or TemplateError where they do not fit.

        Args:
            tokenizer: a transformers tokenizer, or a `Codec` around one to share what it has
                learned.
            template: name of one of ours, Jinja text, or None for the tokenizer's own.
            clock: the time the template is told.
            system: text of a system prompt for conversations that have none, or a `SystemPrompt`.
            thinking: `default`, `on`, `off` or an effort, where the template has such a switch.
            answer_at: where a target or prefill stands: where the template puts an `answer` (after
                an empty thinking block or a channel header), or right at the `start` of what the
                model writes.
            template_variables: further variables for the template.
        """
        self.codec = tokenizer if isinstance(tokenizer, Codec) else Codec(tokenizer)
        self.tokenizer = self.codec.tokenizer
        plain = find_template(template, self.tokenizer, clock)
        variables = {
            **self.tokenizer.special_tokens_map,
            **thinking_variables(thinking, plain.reads),
            **(template_variables or {}),
        }
        self.template: ChatTemplate = replace(plain, variables=variables)
        self.system = (
            SystemPrompt()
            if system is None
            else SystemPrompt("user", system)
            if isinstance(system, str)
            else system
        )
        self.frames: tuple[Frame, ...] = ()
        self.thinking = thinking
        self.answer_at = answer_at
        if self.system.source == "none" and self.injected_system:
            raise ConfigError(
                f"system=none: this template ({self.template.origin}) writes a system prompt of its"
                f" own, {self.injected_system!r}; give an empty system text or another template"
            )

    # Rendering and encoding

    def framed(self, frame: Frame) -> ChatTokenizer:
        """One that puts a frame around every conversation before the frames that it has."""
        other = copy.copy(self)
        other.frames = (frame, *self.frames)
        return other

    def with_system(self, conversation: Conversation) -> Conversation:
        """The conversation with the effective system prompt; its own takes precedence."""
        if self.system.text is None or (len(conversation) and conversation[0].role == "system"):
            return conversation
        return Conversation((Message("system", self.system.text), *conversation.messages))

    def prepare(self, conversation: Conversation) -> Conversation:
        """What the template is given: with the effective system prompt, inside the frames."""
        conversation = self.with_system(conversation)
        for frame in self.frames:
            conversation = frame.apply(conversation)
        return conversation

    def _render(self, prepared: Conversation, add_generation_prompt: bool) -> Rendered:
        """A prepared conversation as text; the span of the last user message leaves frames out."""
        rendered = self.template.render(prepared, add_generation_prompt)
        before = sum(len(frame.before) for frame in self.frames)
        after = sum(len(frame.after) for frame in self.frames)
        if not before and not after:
            return rendered
        at = prepared.last_user
        span, trim = rendered.spans[at], rendered.trims[at]
        content = prepared[at].content
        lost = len(content) - len(content.lstrip(trim.left or None)) if trim.left is not None else 0
        start = span.start + max(0, before - lost)
        end = max(start, span.start - lost + len(content) - after)
        left, right = None if before else trim.left, None if after else trim.right
        spans, trims = list(rendered.spans), list(rendered.trims)
        spans[at], trims[at] = Span(span.name, start, end), Trim(left, right)
        return replace(rendered, spans=tuple(spans), trims=tuple(trims))

    def render(
        self, conversation: Conversation, *, add_generation_prompt: bool = True, prefill: str = ""
    ) -> Rendered:
        """The text that is tokenized, with the character span of each message, system included.

        A conversation that ends with the assistant is continued there, like one with that text as
        `prefill`, unless `add_generation_prompt` is False.
        """
        conversation = self.prepare(conversation)
        if not add_generation_prompt:
            return self._render(conversation, False)
        spoken = None
        if len(conversation) and conversation[len(conversation) - 1].role == "assistant":
            spoken = conversation[len(conversation) - 1]
            conversation = Conversation(conversation.messages[:-1])
            prefill = spoken.content + prefill
        rendered = self._render(conversation, True)
        if not prefill and spoken is None:
            return rendered
        text = rendered.text + self._opening(conversation) + prefill
        if spoken is None:
            return replace(rendered, text=text)
        start = len(text) - len(prefill)
        span = Span("assistant", start, start + len(spoken.content))
        return replace(
            rendered,
            text=text,
            spans=(*rendered.spans, span),
            trims=(*rendered.trims, type(rendered.trims[0])()),
        )

    def encode(
        self, conversation: Conversation, *, add_generation_prompt: bool = True, prefill: str = ""
    ) -> tuple[int, ...]:
        """Ids of the rendered conversation, tokenized as one string, BOS once."""
        rendered = self.render(
            conversation, add_generation_prompt=add_generation_prompt, prefill=prefill
        )
        return self.encode_text(rendered.text)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of a rendered text; what the tokenizer puts before plain text is there once."""
        ids = self.codec.encode(text)
        return (*self.missing_bos(ids), *ids)

    def missing_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        """What has to stand before `ids`: BOS where the template did not write it."""
        bos = self.codec.bos_ids
        return () if tuple(ids[: len(bos)]) == bos else bos

    # Segments

    def segments(
        self,
        conversation: Conversation,
        slot: Slot | None = None,
        *,
        target: str | None = None,
        prefill: str = "",
    ) -> Segments:
        """Token ids of a conversation with its slots and target as named spans.

        `input_ids` of the result always equals `encode` of its conversation and prefill.
        """
        if slot is None:
            return self._build(conversation, None, (), target, prefill)
        placed, turn, slots = place(conversation, slot)
        return self._build(placed, turn, slots, target, prefill)

    def reachability(self, segments: Segments) -> ReachabilityFilter:
        """A filter for candidates at the slots; make it once and call it every step."""
        return ReachabilityFilter(self, segments)

    def reachable(
        self, segments: Segments, candidates: Sequence[Sequence[int]] | torch.Tensor
    ) -> Reachability:
        """Which candidate slot ids some text produces here, with texts and statistics."""
        return self.reachability(segments)(candidates)

    def with_slot(self, segments: Segments, slot_ids: Sequence[int]) -> Segments:
        """The segments with other ids at the slots; TemplateError if no text produces them."""
        texts = self.reachability(segments).texts_of(slot_ids)
        changed = None if texts is None else self.with_slot_texts(segments, texts)
        if changed is None or changed.input_ids != segments.input_with(slot_ids):
            raise TemplateError(
                f"the slot ids {list(slot_ids)[:20]} read {texts} in their context, and tokenizing"
                " the conversation with that text gives other ids; filter candidates with"
                " `reachable`, or take what the text gives with `canonicalize`"
            )
        return changed

    def canonicalize(self, segments: Segments, slot_ids: Sequence[int]) -> Segments:
        """The segments that the text of `slot_ids` gives; other ids where it cannot give these."""
        texts = self.reachability(segments).texts_of(slot_ids)
        if texts is None:
            texts = tuple(self.codec.decode(ids) for ids in split_slots(segments, slot_ids))
        return self.with_slot_texts(segments, texts)

    def with_slot_texts(self, segments: Segments, texts: Sequence[str]) -> Segments:
        """The segments with other texts at the slots, one for each."""
        turn, slots = slots_of(segments)
        content = segments.conversation[turn].content
        parts, placed, at = [], [], 0
        for s, text in zip(slots, texts, strict=True):
            parts.append(content[at : s.start])
            start = sum(map(len, parts))
            parts.append(text)
            placed.append(CharSlot(start, start + len(text), s.lead))
            at = s.end
        content = "".join([*parts, content[at:]])
        conversation = segments.conversation.with_content(turn, content)
        target = segments.note.get("target")
        return self._build(conversation, turn, tuple(placed), target, segments.prefill)

    # Vocabulary and answers

    def mask(
        self,
        rows: int | None = None,
        *,
        ascii_only: bool = True,
        allow_special: bool = False,
    ) -> torch.Tensor:
        """`[rows]` bool, the ids an attack may use; see `vocabulary_mask`."""
        return vocabulary_mask(self.codec, rows, ascii_only=ascii_only, allow_special=allow_special)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens written out."""
        return self.codec.decode(ids)

    def decode_reply(self, input_ids: Sequence[int], new_ids: Sequence[int]) -> str:
        """What a model said: decoded in context, special tokens removed, nothing stripped."""
        kept = [i for i in new_ids if i not in self.codec.special_ids]
        context = list(input_ids)[-CONTEXT:]
        text = self.codec.decode_after(context, kept)
        if text is None:
            text = self.codec.decode_after(list(input_ids), kept)
        return self.codec.decode(kept) if text is None else text

    def split_reply(
        self, input_ids: Sequence[int], new_ids: Sequence[int]
    ) -> tuple[str | None, str, bool]:
        """Reasoning (None without one), answer, and whether the reasoning was finished."""
        return split_reasoning(self, input_ids, new_ids)

    def stops(self, generation_config: Any = None) -> Stops:
        """Where generation ends, from the generation config, the tokenizer and the template."""
        return find_stops(self, generation_config)

    @cached_property
    def injected_system(self) -> str:
        """The template's own text before the first user message, markers included.

        Only where it would not be there with a system message of the user's: a default system
        prompt.
        """
        alone = self.template.render(Conversation.user("a"))
        before = alone.text[: alone.spans[0].start]
        try:
            system = self.template.render(Conversation.user("a", system="s"))
        except TemplateError:
            return ""
        with_system = system.text[: system.spans[1].start]
        head = with_system[: system.spans[0].start]
        tail = with_system[system.spans[0].end :]
        if head and len(before) > len(head) + len(tail) and before.startswith(head):
            return before[len(head) : len(before) - len(tail)] if before.endswith(tail) else before
        return ""

    def identity(self) -> dict[str, Any]:
        """JSON facts that decide what a conversation is encoded to."""
        framed = {"frames": [asdict(f) for f in self.frames]} if self.frames else {}
        return {
            **framed,
            "template": self.template.origin,
            "template_hash": self.template.hash,
            "clock": self.template.clock.isoformat(),
            "system": {
                "source": self.system.source,
                "text": self.system.text
                if self.system.text is not None
                else (self.injected_system or None),
            },
            "thinking": self.thinking,
            "answer_at": self.answer_at,
            "tokenizer": self.codec.content_hash,
        }

    # Internals

    def _opening(self, conversation: Conversation) -> str:
        """What stands between the generation prompt and a prefill or target."""
        opening = self.template.answer_opening(conversation)
        if opening is None or (self.answer_at == "start" and opening.strip()):
            return ""
        return opening

    def _build(
        self,
        conversation: Conversation,
        turn: int | None,
        slots: tuple[CharSlot, ...],
        target: str | None,
        prefill: str,
    ) -> Segments:
        rendered = self.render(conversation, prefill=prefill)
        ids, offsets = self.codec.encode_with_offsets(rendered.text)
        bos = self.missing_bos(ids)
        ids, offsets = [*bos, *ids], [*[(0, 0)] * len(bos), *offsets]
        note: dict[str, Any] = {}
        cuts: list[Cut] = []
        edges: list[tuple[int, str, str]] = []
        if turn is not None:
            places, shift = self._places(conversation, rendered, turn, slots)
            cuts = [cut_slot(rendered.text, offsets, start, end) for start, end in places]
            edges = [
                edge
                for start, end in places
                for edge in ((start, "prompt", "slot"), (end, "slot", "post"))
            ]
            chars = [
                {
                    "start": slot.start if cut.char_start == start else cut.char_start - shift,
                    "end": slot.end if cut.char_end == end else cut.char_end - shift,
                    "lead": cut.lead,
                }
                for slot, (start, end), cut in zip(slots, places, cuts, strict=True)
            ]
            note["slots"] = {"turn": turn, "chars": chars}
        if rendered.altered:
            note["altered"] = [a._asdict() for a in rendered.altered]
        spans = label_spans(offsets, rendered.spans, cuts, len(ids))
        target_ids: tuple[int, ...] = ()
        if target is not None:
            target_ids, facts = self._target(conversation, rendered.text, ids, target, prefill)
            spans = (*spans, Span("target", len(ids), len(ids) + len(target_ids)))
            note |= {"target": target, **facts}
        return Segments(
            ids=(*ids, *target_ids),
            spans=spans,
            conversation=conversation,
            merges=merges_at(rendered.text, offsets, _edges(rendered, edges)),
            prefill=prefill,
            note=note,
        )

    def _places(
        self,
        conversation: Conversation,
        rendered: Rendered,
        turn: int,
        slots: Sequence[CharSlot],
    ) -> tuple[list[tuple[int, int]], int]:
        """Character ranges of the slots in the rendered text, and how far the content is moved."""
        index = turn + len(self.prepare(conversation)) - len(conversation)
        self._refuse_altered(rendered, index)
        span, trim = rendered.spans[index], rendered.trims[index]
        content = conversation[turn].content
        kept = content if trim.left is None else content.lstrip(trim.left or None)
        shift = span.start - (len(content) - len(kept))

        def moved(at: int) -> int:
            return min(max(at + shift, span.start), span.end)

        return [(moved(s.start), moved(s.end)) for s in slots], shift

    def _target(
        self,
        conversation: Conversation,
        text: str,
        input_ids: Sequence[int],
        target: str,
        prefill: str,
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Target ids in their context, and what is odd about them.

        `target_inside_trace`: the generation prompt opens a trace, so the target stands in it.
        `target_merge`: the end of the input, as it is and as it becomes with the target behind it.
        """
        facts: dict[str, Any] = {}
        spoken = len(conversation) and conversation[len(conversation) - 1].role == "assistant"
        if not prefill and not spoken:
            prepared = self.prepare(conversation)
            if self.template.answer_opening(prepared) is None:
                facts["target_inside_trace"] = True
            target = self._opening(prepared) + target
        joint, n = self.encode_text(text + target), len(input_ids)
        if joint[:n] == tuple(input_ids):
            return joint[n:], facts
        pairs = enumerate(zip(joint, input_ids, strict=False))
        same = next((k for k, (one, other) in pairs if one != other), len(joint))
        facts["target_merge"] = [
            self.codec.decode(input_ids[same:]),
            self.codec.decode(joint[same : max(n, same + 1)]),
        ]
        return tuple(self.codec.encode(target)), facts

    def _refuse_altered(self, rendered: Rendered, index: int) -> None:
        for a in rendered.altered:
            if a.message == index:
                raise TemplateError(
                    f"the chat template writes message {a.message} ({a.role}) {a.given[:200]!r} as"
                    f" {a.rendered[:200]!r}; a slot can only stand in a message that is kept as is"
                )


def _edges(rendered: Rendered, slots: Sequence[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """Character positions where spans meet, each named by what stands on either side."""
    edges: dict[int, tuple[int, str, str]] = {}
    for s in rendered.spans:
        edges.setdefault(s.start, (s.start, "template", s.name))
        edges.setdefault(s.end, (s.end, s.name, "template"))
    edges |= {at: (at, left, right) for at, left, right in slots}
    return [edges[at] for at in sorted(edges)]
