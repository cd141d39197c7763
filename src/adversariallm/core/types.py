"""The nouns that every layer shares: conversations, behaviors, segments, replies, candidates.

Plain frozen data without behavior beyond small views; importing it imports neither torch nor
transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.budget import Usage

if TYPE_CHECKING:
    import torch

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
ROLES = ("system", "user", "assistant")
FinishReason = Literal["stop", "length", "stop_string", "context", "error", "content_filter"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: a role (`system`, `user` or `assistant`) and its text."""

    role: str
    content: str

    def __post_init__(self) -> None:
        """Refuse roles and contents that no chat template understands."""
        if self.role not in ROLES:
            raise ValueError(f"message role {self.role!r}: expected one of {', '.join(ROLES)}")
        if not isinstance(self.content, str):
            raise TypeError(f"message content is {type(self.content).__name__}: expected str")


@dataclass(frozen=True, slots=True)
class Conversation:
    """An immutable sequence of messages; `to_dicts` gives the plain format shared with judgezoo."""

    messages: tuple[Message, ...]

    @classmethod
    def from_dicts(cls, messages: Iterable[Mapping[str, str]]) -> Conversation:
        """Build from `{"role": ..., "content": ...}` mappings."""
        return cls(tuple(Message(m["role"], m["content"]) for m in messages))

    @classmethod
    def user(cls, content: str, *, system: str | None = None) -> Conversation:
        """Build a single user turn, after an optional system message."""
        head = () if system is None else (Message("system", system),)
        return cls((*head, Message("user", content)))

    def to_dicts(self) -> list[dict[str, str]]:
        """The plain list of role and content mappings."""
        return [{"role": m.role, "content": m.content} for m in self.messages]

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.messages)

    def __getitem__(self, index: int) -> Message:
        """The message at `index`."""
        return self.messages[index]

    @property
    def last_user(self) -> int:
        """Index of the last user message; ValueError where there is none."""
        for i in range(len(self.messages) - 1, -1, -1):
            if self.messages[i].role == "user":
                return i
        raise ValueError("the conversation has no user message")

    def with_content(self, index: int, content: str) -> Conversation:
        """A copy whose message `index` has another content."""
        m = list(self.messages)
        m[index] = replace(m[index], content=content)
        return Conversation(tuple(m))

    def append(self, role: str, content: str) -> Conversation:
        """A copy with one more message."""
        return Conversation((*self.messages, Message(role, content)))

    @property
    def key(self) -> str:
        """A hash of the content, independent of where the conversation stands in a dataset."""
        return digest(self.to_dicts())


def digest(value: Any, length: int = 32) -> str:
    """First `length` hex digits of the SHA-256 of a JSON value (sorted keys, UTF-8, no NaN)."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:length]


@dataclass(frozen=True, slots=True)
class Behavior:
    """One dataset item.

    Attributes:
        id: unique within its dataset, stable between releases.
        conversation: what is asked; never holds the target.
        goal: the request in words, as judges and attackers read it.
        target: affirmative answer prefix for optimization, or None.
        target_source: where the target is from (`dataset`, `user`, `rule:<name>`), None without
            one.
        context: further text that the request refers to (contextual behaviors).
        reference: answer key of utility sets.
        harmful: True where complying is the failure, False where refusing is.
    """

    id: str
    conversation: Conversation
    goal: str
    harmful: bool
    target: str | None = None
    target_source: str | None = None
    context: str | None = None
    category: str | None = None
    subcategory: str | None = None
    split: str | None = None
    reference: Any = None
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; empty fields are left out."""
        out: dict[str, Any] = {
            "id": self.id,
            "conversation": self.conversation.to_dicts(),
            "goal": self.goal,
            "harmful": self.harmful,
        }
        for name in (
            "target", "target_source", "context", "category", "subcategory", "split",
            "reference", "source",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        if self.extra:
            out["extra"] = dict(self.extra)
        return out

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Behavior:
        """Inverse of `to_dict`."""
        values = dict(row)
        values["conversation"] = Conversation.from_dicts(values["conversation"])
        return cls(**values)

    @property
    def key(self) -> str:
        """Hash of everything that can change a result."""
        return digest(self.to_dict())


@dataclass(frozen=True, slots=True)
class Span:
    """A named half-open stretch `[start, end)` of token positions (or characters)."""

    name: str
    start: int
    end: int

    def __len__(self) -> int:
        """Number of positions."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Merge:
    """A token that straddles two spans, with the two strings that merged."""

    position: int
    left: str
    right: str
    left_text: str
    right_text: str


@dataclass(frozen=True)
class Segments:
    """Token ids of one rendered conversation, cut into named spans that cover them without gaps.

    Span names: `template`, `prompt`, `slot` (what an attack may change; several are possible),
        `post` (from
    the last slot to where the assistant starts to speak, prefill included) and `target` (always
    last).

    Attributes:
        ids: the ids of the conversation tokenized as one string, then the target's ids.
        spans: contiguous half-open spans over `ids`.
        conversation: the text form; rendering and encoding it gives `input_ids` again.
        merges: tokens that straddle two spans.
        prefill: text the assistant has already said; part of `input_ids`.
    """

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    conversation: Conversation
    merges: tuple[Merge, ...] = ()
    prefill: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)

    def named(self, name: str) -> tuple[Span, ...]:
        """All spans of that name, in order."""
        return tuple(s for s in self.spans if s.name == name)

    @property
    def slot_ids(self) -> tuple[int, ...]:
        """Ids of all slot positions, in order."""
        return tuple(t for s in self.named("slot") for t in self.ids[s.start : s.end])

    @property
    def slot_positions(self) -> tuple[int, ...]:
        """Positions in `ids` that belong to a slot."""
        return tuple(p for s in self.named("slot") for p in range(s.start, s.end))

    @property
    def target_ids(self) -> tuple[int, ...]:
        """Ids of the target, empty without one."""
        return tuple(t for s in self.named("target") for t in self.ids[s.start : s.end])

    @property
    def input_ids(self) -> tuple[int, ...]:
        """What is sent to the model: everything but the target."""
        return self.ids[: len(self.ids) - len(self.target_ids)]

    @property
    def before(self) -> tuple[int, ...]:
        """Ids before the first slot: identical for every candidate (A in the specification)."""
        slots = self.named("slot")
        return self.ids[: slots[0].start] if slots else self.input_ids

    def input_with(self, slot_ids: Sequence[int]) -> tuple[int, ...]:
        """`input_ids` with the slot positions replaced by `slot_ids`.

        With one slot any length fits; with several, `slot_ids` must have the slots' total length.
        """
        slots = self.named("slot")
        if len(slots) == 1:
            s = slots[0]
            return (*self.ids[: s.start], *slot_ids, *self.input_ids[s.end :])
        positions = self.slot_positions
        if len(slot_ids) != len(positions):
            raise ValueError(f"{len(slot_ids)} slot ids for {len(positions)} slot positions")
        ids = list(self.input_ids)
        for p, t in zip(positions, slot_ids, strict=True):
            ids[p] = t
        return tuple(ids)


@dataclass(frozen=True)
class ModelInput:
    """What is sent to a model: a conversation, its exact ids where known, or embeddings.

    Attributes:
        conversation: the text form; None for inputs that no text produces (embeddings).
        ids: the ids that the conversation encodes to; None lets the model encode it.
        embeddings: `[P, d]` float32 rows standing for positions; then `ids` is None and
            `conversation` None.
        prefill: text the assistant has already said; part of the rendered input, and judges read it
            together with the continuation only for attacks that declare it.
    """

    conversation: Conversation | None = None
    ids: tuple[int, ...] | None = None
    embeddings: torch.Tensor | None = None
    prefill: str = ""

    def __post_init__(self) -> None:
        """Exactly one of text and embeddings."""
        if (self.conversation is None) == (self.embeddings is None):
            raise ValueError("a ModelInput has either a conversation or embeddings")

    @classmethod
    def from_segments(cls, segments: Segments, *, prefill: str = "") -> ModelInput:
        """The input that a segmented conversation stands for."""
        return cls(
            conversation=segments.conversation,
            ids=segments.input_ids,
            prefill=prefill or segments.prefill,
        )


@dataclass(frozen=True)
class Reply:
    """What a model said: the continuation only, never prompt or prefill.

    Attributes:
        text: the answer; special tokens removed, nothing stripped.
        ids: generated ids with the stop token kept; None for remote models.
        finish_reason: why generation ended.
        reasoning: a reasoning trace, where the model writes one; never part of `text`.
        log_probs: log-probability of each generated id, where asked for.
        error: None, or a short code; then `text` is what arrived before the error and is never
            scored.
        raw: provider facts worth keeping (served model, request id); JSON.
        usage: useful work of the model's own calls for this reply.
        defense_usage: useful work of a defense around it, further calls of the model included.
        executed: floating-point operations the machine really did, padding included.
        undefended: what the bare model said, where a defense changed it.
    """

    text: str
    ids: tuple[int, ...] | None = None
    finish_reason: FinishReason = "stop"
    reasoning: str | None = None
    log_probs: tuple[float, ...] | None = None
    error: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    defense_usage: Usage = field(default_factory=Usage)
    executed: int = 0
    undefended: str | None = None


@dataclass(frozen=True)
class State:
    """All an attack needs to go on after a step: JSON values and named tensors, no generators.

    Attributes:
        values: JSON.
        tensors: named tensors, stored as safetensors.
        step: number of the finished step; set by the runner.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    step: int = -1


@dataclass(frozen=True)
class Candidate:
    """Something to try, with the loss that belongs to that very input.

    Attributes:
        inputs: one input per evaluated behavior, in the order of `Task.evaluated` (usually one).
        losses: target loss of each input, None where it was not computed or is undefined.
        reply: the answer, where the loop already obtained one; completion 0 of the step.
        state: what the attack needs to continue after this step.
        note: algorithm facts worth storing (JSON).
        flags: reliability flags of this step, e.g. `no_reachable_candidate`.
    """

    inputs: tuple[ModelInput, ...]
    losses: tuple[float | None, ...]
    reply: Reply | None = None
    state: State = field(default_factory=State)
    note: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        input: ModelInput | Segments | Conversation,
        loss: float | None = None,
        **rest: Any,
    ) -> Candidate:
        """A candidate for a single behavior."""
        if isinstance(input, Segments):
            input = ModelInput.from_segments(input)
        elif isinstance(input, Conversation):
            input = ModelInput(conversation=input)
        return cls(inputs=(input,), losses=(loss,), **rest)


@dataclass(frozen=True)
class Task:
    """What an attack is run on.

    Attributes:
        behaviors: the fit set; one behavior for attacks whose INFO says `fits: one`.
        evaluated: the behaviors whose inputs a candidate carries (usually the same).
    """

    behaviors: tuple[Behavior, ...]
    evaluated: tuple[Behavior, ...] = ()

    def __post_init__(self) -> None:
        """Evaluate on the fit set unless told otherwise."""
        if not self.behaviors:
            raise ValueError("a task needs at least one behavior")
        if not self.evaluated:
            object.__setattr__(self, "evaluated", self.behaviors)

    @property
    def behavior(self) -> Behavior:
        """The single behavior; ValueError where there are several."""
        if len(self.behaviors) != 1:
            raise ValueError(f"this task has {len(self.behaviors)} behaviors, not one")
        return self.behaviors[0]
