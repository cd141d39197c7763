"""A model whose every conversation stands inside a frame of fixed text.

The attacker's ids, losses and gradients are those of the framed conversation, so that everything of
the model passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from adversariallm.core.config import FrozenConfig
from adversariallm.core.protocols import ChatModel, DefenseInfo, Needs
from adversariallm.core.types import Conversation, Message, Reply
from adversariallm.defenses._kit.defended import Ask, Defended, bare
from adversariallm.defenses._kit.requests import Request
from adversariallm.tokenization.frame import Frame

if TYPE_CHECKING:
    from adversariallm.tokenization import ChatTokenizer


class Framed(Defended):
    """The model behind fixed text around the conversation."""

    def __init__(
        self, model: ChatModel, info: DefenseInfo, config: FrozenConfig, frame: Frame
    ) -> None:
        """Put `frame` around what `model` reads."""
        super().__init__(model, info, config)
        self.frame = frame

    @property
    def chat(self) -> ChatTokenizer:
        """The model's chat tokenizer with the frame: ids it makes hold the fixed text."""
        return self._chat

    @cached_property
    def _chat(self) -> ChatTokenizer:
        return self._inner(Needs.TOKENS).chat.framed(self.frame)

    def answer(self, requests: Sequence[Request], ask: Ask) -> list[Reply]:
        """The model's answers to the framed conversations."""
        return ask([self._frame(request) for request in requests])

    def _frame(self, request: Request) -> Request:
        own = with_own_system(self.model, request.conversation)
        return replace(request, conversation=self.frame.apply(own), ids=None)


def with_own_system(model: ChatModel, conversation: Conversation) -> Conversation:
    """The conversation with the system prompt that the model itself would add.

    A frame that adds a system message would otherwise displace it.
    """
    model = bare(model)
    chat: ChatTokenizer | None = getattr(model, "chat", None)
    if chat is not None:
        return chat.with_system(conversation)
    text: str | None = getattr(model, "system_prompt", None)
    if text is None or (len(conversation) and conversation[0].role == "system"):
        return conversation
    return Conversation((Message("system", text), *conversation.messages))
