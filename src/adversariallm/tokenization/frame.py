"""Fixed text around a conversation: a system prompt, worked turns, words around the last message.

A frame is applied before the chat template, so that ids, slots, losses and gradients are those of
the framed conversation, while what is attacked stays the conversation inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from adversariallm.core.types import Conversation, Message


@dataclass(frozen=True)
class Frame:
    """Text that is put around every conversation; empty parts change nothing.

    Attributes:
        system: goes after the text of the conversation's own system message, a blank line between;
            alone where there is none.
        turns: further turns right after the system message.
        before: stands before the content of the last user message.
        after: stands after it.
    """

    system: str = ""
    turns: tuple[Message, ...] = ()
    before: str = ""
    after: str = ""

    def apply(self, conversation: Conversation) -> Conversation:
        """The conversation inside the frame."""
        framed = conversation
        if self.before or self.after:
            last = framed.last_user
            content = f"{self.before}{framed[last].content}{self.after}"
            framed = framed.with_content(last, content)
        messages = framed.messages
        head: tuple[Message, ...] = ()
        if messages and messages[0].role == "system":
            head, messages = messages[:1], messages[1:]
        if self.system:
            own = f"{head[0].content}\n\n" if head and head[0].content else ""
            head = (Message("system", own + self.system),)
        return Conversation((*head, *self.turns, *messages))
