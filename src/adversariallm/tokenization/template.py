"""Renders conversations with a chat template and finds exactly where each message's content stands.

It works on text alone: no tokenizer, no ids. The clock a template sees is frozen and part of its
identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from adversariallm.core.errors import TemplateError
from adversariallm.core.types import Conversation, Message, Span

DEFAULT_CLOCK = datetime(2026, 1, 1, 12, 0)
"""What templates that print a date are given by default, so that no result depends on the day."""

_LEFT_PAD, _RIGHT_PAD = "\n \u2003", "\u2003 \n"


class Altered(NamedTuple):
    """A message whose content the template changed by more than trimming, or dropped ('')."""

    message: int
    role: str
    given: str
    rendered: str


class Trim(NamedTuple):
    """What a template strips from a content: nothing (None), white space (""), or characters."""

    left: str | None = None
    right: str | None = None

    def __call__(self, content: str) -> str:
        """The content as the template writes it."""
        if self.left is not None:
            content = content.lstrip(self.left or None)
        if self.right is not None:
            content = content.rstrip(self.right or None)
        return content


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, with the character span of each message's content.

    Attributes:
        text: what is tokenized.
        spans: one per message, named by its role; what the template wrote for that content.
        trims: per message, what the template strips from contents at this place.
        altered: messages that do not stand in the text as given, trimming aside.
    """

    text: str
    spans: tuple[Span, ...]
    trims: tuple[Trim, ...]
    altered: tuple[Altered, ...] = ()


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template with everything else that decides what it renders.

    Attributes:
        source: the Jinja text.
        origin: where it is from: `tokenizer`, `ours:<name>` or `user`.
        variables: special token strings and options that the template reads.
        clock: the time it is told.
    """

    source: str
    origin: str = "user"
    variables: Mapping[str, Any] = field(default_factory=dict)
    clock: datetime = DEFAULT_CLOCK

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of source, variables and clock."""
        facts = [self.source, dict(self.variables), self.clock.isoformat()]
        text = json.dumps(facts, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names of the variables that the template looks up."""
        from jinja2 import meta

        return frozenset(meta.find_undeclared_variables(self._tree))

    @cached_property
    def inspected(self) -> frozenset[str]:
        """Strings that it tests contents for; where one appears, only rendering tells.

        All strings in comparisons, calls and filters count, but for those compared with a role,
        keys and error messages.
        """
        from jinja2 import nodes

        def harmless(node: nodes.Node) -> bool:
            if isinstance(node, nodes.Call):
                return isinstance(node.node, nodes.Name) and node.node.name == "raise_exception"
            return isinstance(node, nodes.Compare) and _names_role(node.expr)

        kinds = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)
        found = list(self._tree.find_all(kinds))
        skipped = {id(g.arg) for g in self._tree.find_all(nodes.Getitem)}
        skipped |= {id(c) for n in found if harmless(n) for c in n.find_all(nodes.Const)}
        return frozenset(
            c.value
            for node in found
            for c in node.find_all(nodes.Const)
            if isinstance(c.value, str) and c.value and id(c) not in skipped
        )

    @cached_property
    def _environment(self) -> Any:
        return _environment(self.clock)

    @cached_property
    def _tree(self) -> Any:
        from jinja2 import TemplateSyntaxError

        try:
            return self._environment.parse(self.source)
        except TemplateSyntaxError as e:
            raise TemplateError(f"the chat template ({self.origin}) is not valid Jinja: {e}") from e

    @cached_property
    def _compiled(self) -> Any:
        return self._environment.from_string(self._tree)

    @cached_property
    def _pieces(self) -> dict[tuple[tuple[str, ...], bool], _Pieces | None]:
        return {}

    def text(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The rendered text alone; TemplateError where the template refuses the conversation."""
        import jinja2

        for i, m in enumerate(messages):
            _refuse_surrogates(i, m)
        rows = [{"role": m.role, "content": m.content} for m in messages]
        try:
            text: str = self._compiled.render(
                messages=rows, add_generation_prompt=add_generation_prompt, **self.variables
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as e:
            roles = ", ".join(m.role for m in messages) or "no message"
            raise TemplateError(
                f"the chat template ({self.origin}) refuses a conversation of [{roles}]: {e}"
            ) from e
        return text

    def render(self, conversation: Conversation, add_generation_prompt: bool = True) -> Rendered:
        """Render and locate every message.

        Source: the way of the design page, section 5: render with sentinel contents to learn the
        literal pieces around each message and the trimming, then check that they reassemble to the
        real rendering.
        """
        messages = conversation.messages
        text = self.text(messages, add_generation_prompt)
        found = _assemble(self._learn(messages, add_generation_prompt), messages, text)
        return found or self._locate_singly(messages, add_generation_prompt, text)

    def answer_opening(self, conversation: Conversation) -> str | None:
        """What stands between the generation prompt and an answer.

        Nothing for most templates, a blank for some, a header for templates with channels, an empty
        thinking block. None where the generation prompt itself opens what an answer in a finished
        conversation does not have (a reasoning trace).
        """
        prompt = self.text(conversation.messages, True)
        mark = "\ue0f0answer\ue0f1"
        turns = (*conversation.messages, Message("assistant", mark))
        head, found, _ = self.text(turns, False).partition(mark)
        return head[len(prompt) :] if found and head.startswith(prompt) else None

    def end_of_turn(self) -> str:
        """The literal text that follows the answer in a finished conversation."""
        mark = "\ue0f0answer\ue0f1"
        turns = (Message("user", "a"), Message("assistant", mark))
        return self.text(turns, False).partition(mark)[2]

    def _learn(self, messages: Sequence[Message], add_generation_prompt: bool) -> _Pieces | None:
        """Literal pieces around the contents for these roles; None where content is dropped."""
        key = (tuple(m.role for m in messages), add_generation_prompt)
        if key not in self._pieces:
            marks = [f"\ue0f0{i}\ue0f1" for i in range(len(messages))]
            probes = [_padded(m.role, mark) for m, mark in zip(messages, marks, strict=True)]
            try:
                self._pieces[key] = _Pieces.cut(self.text(probes, add_generation_prompt), marks)
            except TemplateError:
                self._pieces[key] = None
        return self._pieces[key]

    def _locate_singly(
        self, messages: Sequence[Message], add_generation_prompt: bool, text: str
    ) -> Rendered:
        """Locate each message with the others in place; what cannot be found is altered."""
        spans: list[Span] = []
        trims: list[Trim] = []
        altered: list[Altered] = []
        at = 0
        for i, m in enumerate(messages):
            probe = [*messages[:i], _padded(m.role, "\ue0f0\ue0f1"), *messages[i + 1 :]]
            try:
                pieces = _Pieces.cut(self.text(probe, add_generation_prompt), ["\ue0f0\ue0f1"])
            except TemplateError:
                pieces = None
            start, end, trim = at, at, Trim()
            if pieces is not None:
                (left, right), (trim,) = pieces
                inside = len(left) <= len(text) - len(right)
                if inside and text.startswith(left) and text.endswith(right):
                    start, end = len(left), len(text) - len(right)
            if text[start:end] != trim(m.content):
                altered.append(Altered(i, m.role, m.content, text[start:end]))
            spans.append(Span(m.role, start, end))
            trims.append(trim)
            at = end
        return Rendered(text, tuple(spans), tuple(trims), tuple(altered))


class _Pieces(NamedTuple):
    """Literal text around n contents (n + 1 pieces) and what is trimmed from each."""

    literals: list[str]
    trims: list[Trim]

    @classmethod
    def cut(cls, text: str, marks: Sequence[str]) -> _Pieces | None:
        """Cut a rendering at its padded marks; None unless each stands there once and in order."""
        literals, trims, rest = [], [], text
        for mark in marks:
            left, found, rest = rest.partition(mark)
            if not found or mark in rest:
                return None
            left, left_trim = _unpad(left, _LEFT_PAD, str.endswith, str.removesuffix)
            rest, right_trim = _unpad(rest, _RIGHT_PAD, str.startswith, str.removeprefix)
            literals.append(left)
            trims.append(Trim(left_trim, right_trim))
        return cls([*literals, rest], trims)


def _names_role(node: Any) -> bool:
    """Whether an expression is the role of a message."""
    from jinja2 import nodes

    if isinstance(node, nodes.Getattr):
        return node.attr == "role"
    return (
        isinstance(node, nodes.Getitem)
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == "role"
    )


def _padded(role: str, mark: str) -> Message:
    """A message whose content shows where a template puts it and what it strips."""
    return Message(role, f"{_LEFT_PAD}{mark}{_RIGHT_PAD}")


def _unpad(text: str, pad: str, has: Any, remove: Any) -> tuple[str, str | None]:
    """Remove what is left of a pad next to a mark; second, the characters that were stripped."""
    if has(text, pad):
        return remove(text, pad), None
    inner = pad.strip("\n")
    if has(text, inner):
        return remove(text, inner), "\n"
    return text, ""


def _assemble(pieces: _Pieces | None, messages: Sequence[Message], text: str) -> Rendered | None:
    """Spans of the messages if pieces and trimmed contents give exactly `text`."""
    if pieces is None:
        return None
    spans, out = [], ""
    for m, literal, trim in zip(messages, pieces.literals, pieces.trims, strict=False):
        out += literal
        content = trim(m.content)
        spans.append(Span(m.role, len(out), len(out) + len(content)))
        out += content
    if out + pieces.literals[-1] != text:
        return None
    return Rendered(text, tuple(spans), tuple(pieces.trims))


def _refuse_surrogates(index: int, message: Message) -> None:
    """TemplateError for text that has no UTF-8 form."""
    try:
        message.content.encode("utf-8")
    except UnicodeEncodeError as e:
        raise TemplateError(
            f"message {index} ({message.role}) holds a lone surrogate at character {e.start}:"
            " no tokenizer can read it"
        ) from e


def _environment(clock: datetime) -> Any:
    """The sandboxed Jinja environment that chat templates are written for, with a frozen clock."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """Accepts the `generation` block that marks assistant text, and renders what is inside."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            """The nodes inside the block, as they stand."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = clock.strftime
    return environment
